#!/usr/bin/env bash
# One GPU, at most 8 minutes, no network, torch as found: kernel rates, memory of real layers against the model, and the
# trial worker where megatron-core is installed. What was measured is in the report even if the rest fails.
#   tests/gpu/run.sh [--out FILE.json] [--limit SECONDS] [--self-test]
# --self-test is small and runs on a CPU: it checks the mechanics, not the rates.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3}
if ! "$python" -c "import torch" 2>/dev/null; then
  echo "run.sh: $python has no torch; PYTHON names another interpreter" >&2
  exit 3
fi
exec timeout --kill-after=10 480 "$python" "$here/probe.py" "$@"
