#!/bin/bash
# JupyterHub with batchspawner as it is: a browser logs in, starts a server through sbatch, squeue and scancel, and runs a cell.
# Installs: jupyterhub, batchspawner, jupyterlab and selenium of PyPI, configurable-http-proxy of npm, chromium of Debian (900 MB).
source "$(dirname "$0")/party.bash" "$@"
debian chromium chromium-driver
venv 'jupyterhub>=5,<7' 'batchspawner==1.3.*' 'jupyterlab==4.*' 'selenium==4.*'
npm_package configurable-http-proxy@5
pool_up --nodes 1 --gpus h100:4

# One to log in, with a home and no password.
reader=gpnb$$
useradd --create-home --home-dir "$work/reader" --shell /bin/bash "$reader" || not_run 'a user to log in cannot be made'
hub=
undo() {
    # The hub leaves its proxy when it is not asked to end.
    [ -z "$hub" ] || kill -- "-$hub" 2>/dev/null
    userdel "$reader"
}
cat >"$work/reader/gpus.ipynb" <<'NB'
{"cells": [{"cell_type": "code", "execution_count": null, "id": "one", "metadata": {}, "outputs": [],
  "source": ["import os\n", "print('GPUs', os.environ['CUDA_VISIBLE_DEVICES'], 'of job', os.environ['SLURM_JOB_ID'], 'as', os.getuid())"]}],
 "metadata": {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}, "nbformat": 4, "nbformat_minor": 5}
NB
chown -R "$reader:" "$work/reader"

# As a user has it: nothing below the home of root.
export PATH=$work/venv/bin:$work/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin
hub_port=$(free_port) api_port=$(free_port) proxy_port=$(free_port)
cat >hub.py <<PY
import os, batchspawner
c = get_config()
c.JupyterHub.bind_url = "http://127.0.0.1:$hub_port"
c.JupyterHub.hub_port = $api_port
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:$proxy_port"
c.ConfigurableHTTPProxy.command = ["$work/node_modules/.bin/configurable-http-proxy"]
c.JupyterHub.authenticator_class = "dummy"
c.DummyAuthenticator.password = "of the party"
c.Authenticator.allow_all = True
c.JupyterHub.spawner_class = "batchspawner.SlurmSpawner"
c.SlurmSpawner.exec_prefix = "runuser -u {username} --"
c.SlurmSpawner.req_gres = "gpu:2"
c.SlurmSpawner.req_runtime = "30:00"
c.SlurmSpawner.req_memory = "4G"
c.SlurmSpawner.req_nprocs = "2"
# The node is this machine, and its name stands in no name service.
c.SlurmSpawner.state_exechost_exp = "127.0.0.1"
c.Spawner.env_keep = ["PATH", "GPUPOOL_CONFIG"]
c.Spawner.start_timeout = 60
c.Spawner.http_timeout = 60
c.Spawner.default_url = "/lab/tree/gpus.ipynb"
PY
setsid "$work/venv/bin/jupyterhub" -f hub.py >hub.log 2>&1 &
hub=$!

cat >browser.py <<'PY'
import sys
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support import expected_conditions as seen
from selenium.webdriver.support.ui import WebDriverWait
address, user, profile = sys.argv[1:]
options = webdriver.ChromeOptions()
for word in ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1400,1000",
             "--user-data-dir=" + profile]:
    options.add_argument(word)
options.binary_location = "/usr/bin/chromium"
browser = webdriver.Chrome(options=options, service=webdriver.ChromeService("/usr/bin/chromedriver"))
def wait(condition, what, seconds=80):
    try:
        return WebDriverWait(browser, seconds).until(condition)
    except Exception:
        sys.exit(f"{what} did not come: {browser.current_url} {browser.find_element(By.TAG_NAME, 'body').text[:600]}")
try:
    browser.get(address)
    wait(seen.presence_of_element_located((By.NAME, "username")), "the page to log in").send_keys(user)
    browser.find_element(By.NAME, "password").send_keys("of the party", Keys.ENTER)
    print("logged in", flush=True)
    cell = wait(seen.element_to_be_clickable((By.CSS_SELECTOR, ".jp-CodeCell .cm-content")), "the notebook")
    print("notebook", flush=True)
    cell.click()
    output = (By.CSS_SELECTOR, ".jp-OutputArea-output")
    for _ in range(10):
        cell.send_keys(Keys.CONTROL, Keys.ENTER)
        try:
            WebDriverWait(browser, 15).until(lambda page: "GPUs" in page.find_element(*output).text)
            break
        except Exception:
            cell = browser.find_element(By.CSS_SELECTOR, ".jp-CodeCell .cm-content")
    print(wait(seen.presence_of_element_located(output), "the output of the cell", 5).text, flush=True)
finally:
    browser.quit()
PY
for _ in $(seq 60); do
    curl -fs -o page "http://127.0.0.1:$hub_port/hub/login" && break
    kill -0 "$hub" 2>/dev/null || { tail -n 30 hub.log; fail 'JupyterHub has ended'; }
    sleep 1
done
timeout 280 "$work/venv/bin/python" browser.py "http://127.0.0.1:$hub_port" "$reader" "$work/profile" >seen 2>&1 ||
    { cat seen; tail -n 40 hub.log; cat "$work"/reader/*.log; squeue; fail 'the browser'; }
cat seen
job=$(squeue -h -o %i)
same 'a cell lists the GPUs of its job' "GPUs 0,1 of job $job as $(id -u "$reader")" "$(grep ^GPUs seen)"
# At its end the hub stops its servers, by scancel.
kill "$hub"
wait "$hub" || true
for _ in $(seq 30); do
    [ -n "$(squeue -h)" ] || break
    sleep 1
done
same 'no job is left after the hub' '' "$(squeue -h)"
pass 'a browser logged in to JupyterHub, started a server with two GPUs and ran a cell'
