"""What an Executor's jobs run."""

import sys

from gpupool._task import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
