#!/usr/bin/env bash
# What the browser tests of `mmstable report` need: requirements/browser.sh VENV
# Debian's chromium, and playwright to drive it. Without them these tests are
# skipped and say why, so nothing in here is an error.
set -uo pipefail

venv=$1
cd "$(dirname "$0")/.."
note() { echo "browser.sh: $1; the browser tests are skipped" >&2; }

constraints=()
"$venv/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
    && constraints=(-c requirements/tested.txt)
"$venv/bin/python" -m pip --disable-pip-version-check --quiet install \
    ${constraints[@]+"${constraints[@]}"} -r requirements/browser.txt \
    || note 'pip could not install playwright'

for name in chromium chromium-browser google-chrome; do
    command -v "$name" >/dev/null && exit 0
done
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    note 'there is no chromium, and only root can install it with apt-get'
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
install() { timeout 600 apt-get install -y -qq --no-install-recommends chromium; }
{ install || { timeout 300 apt-get update -qq && install; }; } >/dev/null 2>&1 \
    || note 'apt-get could not install chromium'
exit 0
