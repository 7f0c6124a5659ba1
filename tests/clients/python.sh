#!/bin/bash
# The Python package: its types by mypy --strict, its wheel in a bare environment, its tests with that and with cloudpickle, 300 calls.
# Installs: mypy, build, hatchling and cloudpickle of PyPI (40 MB).
source "$(dirname "$0")/party.bash" "$@"
venv mypy build hatchling
cp -r "$here/../../python" "$work/package"
cd "$work/package"
right 'its types are sound (mypy --strict)' "$work/venv/bin/mypy" --strict src tests
"$work/venv/bin/python" -m build --wheel --no-isolation --outdir "$work/dist" . >"$work/build.log" 2>&1 || { tail "$work/build.log"; fail 'no wheel is built'; }
/usr/bin/python3 -m venv "$work/bare"
right 'its wheel needs nothing from elsewhere' "$work/bare/bin/pip" install --quiet --no-index "$work"/dist/gpupool-*.whl
right 'and says that it is typed' "$work/bare/bin/python" -c 'import gpupool, pathlib; assert (pathlib.Path(gpupool.__file__).parent / "py.typed").exists()'

pool_up --nodes 2 --gpus h100:2
export PYTHONPATH=$work/package/tests
tested() { "$work/bare/bin/python" -m unittest test_pool >"$work/unittest.log" 2>&1 || { tail -n 40 "$work/unittest.log"; return 1; }; }
right 'its tests pass with the wheel' tested
cat >many.py <<'PY'
import gpupool
with gpupool.Executor(time=5, mem="100M", at_once=8, folder="runs") as pool:
    print(sum(pool.map(abs, range(-300, 0))))
PY
same '300 calls are one array' 45150 "$(timeout 300 "$work/bare/bin/python" many.py)"
cat >lambdas.py <<'PY'
import gpupool
def square(n):
    return n * n
with gpupool.Executor(time=5, folder="runs") as pool:
    print(list(pool.map(square, [2, 3])), list(pool.map(lambda n: n + 1, [2, 3])))
PY
right 'without cloudpickle a function of stdin is refused with advice' \
    sh -c "'$work/bare/bin/python' - <lambdas.py 2>&1 | grep -q 'pip install cloudpickle'"
"$work/bare/bin/pip" install --quiet --disable-pip-version-check cloudpickle >"$work/pip.log" 2>&1 || not_run 'pip does not install cloudpickle'
right 'its tests pass beside cloudpickle' tested
same 'with cloudpickle it is called, and a lambda too' '[4, 9] [3, 4]' "$("$work/bare/bin/python" - <lambdas.py)"
pass 'types, wheel, tests, 300 calls, lambdas'
