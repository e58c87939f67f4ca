#!/usr/bin/env bash
# Makes agent.zip, the code of all functions of infra/template.yaml: examples/lambda/build.sh [REQUIREMENT...]
#
# REQUIREMENTs are what your agent needs besides, such as langchain-aws. For Python 3.13 on x86_64, wherever it is run.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
package=$(mktemp -d)
trap 'rm -rf "$package"' EXIT

# boto3 is in Lambda's runtime, but of its own age; a copy here is the one that was tested, for 17 MiB more.
"$python" -m pip install --quiet --target "$package" --platform manylinux2014_x86_64 --python-version 3.13 \
    --only-binary=:all: "${S3SAVER:-langgraph-checkpoint-s3saver}" langchain "$@"
cp "$here"/*.py "$package"
rm -rf "$package"/bin

# Compiled files save the better part of a cold start. They have to be of the runtime's own version.
if "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 13))'; then
    "$python" -m compileall -q --invalidation-mode unchecked-hash "$package"
else
    echo "not compiled: that takes Python 3.13 (PYTHON=python3.13 $0)" >&2
fi
rm -f agent.zip
(cd "$package" && "$python" -m zipfile -c "$OLDPWD/agent.zip" ./*)
ls -l agent.zip
