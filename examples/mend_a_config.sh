#!/usr/bin/env bash
# A TRL config that does not fit: find out, mend the file in place (comments and order stay), check again.
set -u
here="$(cd "$(dirname "$0")" && pwd)/check"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
cp "$here/train.yaml" "$here/zero3.yaml" "$work"
cd "$work"
job=(train.yaml --with zero3.yaml --gpu h100-80gb)

memplan check "${job[@]}" && echo "nothing to mend" && exit 0

# The change that memplan estimate ranks well: half the pairs at a time, the same 128 in a step.
change=(--batch-size 8 --gradient-accumulation-steps 2)
memplan emit trl "${job[@]}" "${change[@]}" --onto train.yaml
memplan emit trl "${job[@]}" "${change[@]}" --onto train.yaml --force

memplan check "${job[@]}"
