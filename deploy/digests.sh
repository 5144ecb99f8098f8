#!/usr/bin/env bash
# Print each image of deploy/ with its digest, or write the digests into the files (--write), so that a tag that is moved
# later changes nothing. Needs a registry of images: not run where tocsin is developed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

if command -v crane >/dev/null; then digest() { crane digest "$1"; }
elif command -v skopeo >/dev/null; then digest() { skopeo inspect --format '{{.Digest}}' "docker://$1"; }
elif command -v docker >/dev/null; then digest() { docker buildx imagetools inspect "$1" --format '{{.Manifest.Digest}}'; }
else echo "deploy/digests.sh: install crane, skopeo or docker" >&2; exit 1
fi

files=(compose.yaml Dockerfile kubernetes/*.yaml)
# Tags of the Dockerfile are its arguments: name:${NAME_TAG} with ARG NAME_TAG=tag.
args=$(sed -n 's/^ARG \([A-Z_]*\)=\(.*\)$/s|${\1}|\2|g/p' Dockerfile)
images=$(sed -e "$args" -n -e 's/^ *image: *\([^ ]*:[^ @]*\).*$/\1/p' -e 's/^FROM *\([^ ]*:[^ @]*\).*$/\1/p' "${files[@]}" |
  grep -v '^tocsin' | sort -u)
status=0
for image in $images; do
  if ! found=$(digest "$image") || [[ $found != sha256:* ]]; then
    echo "deploy/digests.sh: no digest for $image" >&2
    status=1
    continue
  fi
  echo "$image@$found"
  if [ "${1:-}" = --write ]; then
    sed -i "s#\(image: *\)$image\( \|$\)#\1$image@$found\2#" compose.yaml kubernetes/*.yaml
    for written in $(sed -n 's/^FROM *\([^ ]*:[^ @]*\)\( .*\)*$/\1/p' Dockerfile | sort -u); do
      [ "$(sed -e "$args" <<<"$written")" != "$image" ] || sed -i "s#^\(FROM *$written\)\( \|$\)#\1@$found\2#" Dockerfile
    done
  fi
done
exit $status
