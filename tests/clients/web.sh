#!/bin/bash
# The controller's page in a real browser: a user logs in by gq web, finds why a job waits, cancels it, and logs out; without a script too.
# Installs: chromium and its driver of Debian (700 MB).
source "$(dirname "$0")/party.bash" "$@"
debian chromium chromium-driver
pool_up --nodes 2 --gpus h100:8

# An ordinary user, with a home for jobs.
reader=gpwb$$
useradd --create-home --home-dir "$work/reader" --shell /bin/bash "$reader" || not_run 'a user to log in cannot be made'
undo() { userdel "$reader"; }
as_reader() { (cd "$work/reader" && runuser -u "$reader" -- env PATH="$PATH" GPUPOOL_CONFIG="$GPUPOOL_CONFIG" "$@"); }
for _ in 1 2; do as_reader gsub --gpus 8 --time 30 --wrap 'sleep 600' >/dev/null; done
for _ in $(seq 100); do
    [ "$(gq -h -t R | wc -l)" = 2 ] && break
    sleep 0.1
done
waits=$(as_reader gsub --gpus 8 -J '<script>document.title="stolen"</script>' --wrap 'sleep 60')
others=$(gsub --gpus 8 -J "root's" --wrap 'sleep 60')
for _ in $(seq 50); do
    why=$(as_reader gq --why "$waits")
    [[ $why == *"(Resources)"* ]] && break
    sleep 0.2
done
why=$(sed -n 's/^  \(needs\|Resources: needs\)/\1/p' <<<"$why" | head -n 1)
[ -n "$why" ] || fail 'gq --why says nothing of what the job needs'

cat >browser.py <<'PY'
"""The browser by its own protocol: W3C WebDriver over HTTP."""
import json, subprocess, sys, time, urllib.error, urllib.request

driver_port, link, waits, others, why, profile = sys.argv[1:]
site = link.split("/login/")[0]
server = subprocess.Popen(["/usr/bin/chromedriver", f"--port={driver_port}"], stdout=subprocess.DEVNULL)


def call(method, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{driver_port}{path}", data, {"content-type": "application/json"}, method=method)
    return json.load(urllib.request.urlopen(request, timeout=60))["value"]


def wait(what, ask, seconds=30):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if answer := ask():
                return answer
        except (OSError, urllib.error.HTTPError):
            pass
        time.sleep(0.1)
    sys.exit(f"{what} did not come: {text('body')[:800] if session else ''}")


session = None
wait("the driver", lambda: call("GET", "/status")["ready"])


def begin(script):
    arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1280,900", f"--user-data-dir={profile}{script}"]
    options = {"binary": "/usr/bin/chromium", "args": arguments}
    if not script:
        options["prefs"] = {"profile.managed_default_content_settings.javascript": 2}
    wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
    return "/session/" + call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]


def do(method, path, body=None):
    return call(method, session + path, body)


def find(selector):
    found = do("POST", "/elements", {"using": "css selector", "value": selector})
    return [next(iter(one.values())) for one in found]


def text(selector):
    return "\n".join(do("GET", f"/element/{one}/text") for one in find(selector))


def go(url):
    do("POST", "/url", {"url": url})


def click(selector):
    do("POST", f"/element/{find(selector)[0]}/click", {})


def title():
    return do("GET", "/title")


def right(what, holds):
    if not holds:
        sys.exit(f"WRONG: {what}: {text('body')[:1500]}")
    print("right:", what, flush=True)


try:
    for script in (True, False):
        session = begin(script)
        with_it = "with the script" if script else "without it"
        if script:
            go(link)
        else:
            # The link is used up; the one of the second argument list is for this browser.
            go(site + "/")
            right("a browser without a session is told of gq web", "gq web" in text("main"))
            go(link)
            right("a link is good once", "good no more" in text("main"))
            go(sys.stdin.readline().strip())
        wait("the list of jobs", lambda: title().startswith("Jobs"))
        right(f"the list is there, {with_it}, with two jobs that run", "Your jobs" in text("h1") and "2" in text("#title-running"))
        right("a name is text and no script", "<script>" in text("main") and "stolen" not in title())
        if script:
            click(f"a[href='/job/{waits}']")
            wait("the page of the job", lambda: title().startswith(f"Job {waits}"))
            right("the job says why it waits, as gq --why does", why in text(".why-lines"))
            go(f"{site}/job/{others}")
            right("another user's job has no buttons", not find(".acts"))
            go(f"{site}/job/{waits}")
            click(".acts details summary")
            click("button.danger")
            wait("the word that it is cancelled", lambda: "is cancelled" in text(".said"))
            right("the job is cancelled", "cancelled" in text("h1"))
            go(site + "/pool")
            right("the pool shows 16 GPUs that are held", len(find("ul.gpus li.held")) == 16)
            before = text("#live")
            wait("a page that is new by itself", lambda: text("#live") != before)
            right("a page keeps itself up to date", True)
        click("header.top button")
        for problem in do("POST", "/se/log", {"type": "browser"}):
            # The page that follows a logout is answered by 401.
            if "401" not in problem["message"] and "403" not in problem["message"]:
                sys.exit(f"the browser complains: {problem['message']}")
        right("after the logout there is no session", "gq web" in text("main"))
        do("DELETE", "")
        session = None
finally:
    # The driver leaves its browser when it ends with a session.
    if session:
        do("DELETE", "")
    server.terminate()
    server.wait()
PY
port=$(free_port)
link=$(as_reader gq web 2>/dev/null)
second=$(as_reader gq web 2>/dev/null)
timeout 200 python3 browser.py "$port" "$link" "$waits" "$others" "$why" "$work/profile" <<<"$second" || fail 'the browser'
same 'the controller knows that the job is cancelled' CANCELLED "$(as_reader gq -h -o %T -t all -j "$waits")"
same 'no secret of a link is in the log' '' "$(grep -hoF -e "${link##*/}" -e "${second##*/}" "$pool"/gpuctld/log || true)"
pass 'a browser logged in by gq web, found why a job waits, cancelled it and logged out, with and without a script'
