#!/usr/bin/env bash
# Builds headrace's images, labels them and takes their bills of materials out; see --help.
set -euo pipefail

usage() {
  cat <<'HELP'
Build headrace's images with Docker, for any CI.

  deploy/build-images.sh [OPTION...] [TARGET...] [-- OPTION OF DOCKER BUILD...]

TARGET is a stage of deploy/Dockerfile; by default `server` and `converter`.

  --prefix PREFIX  what stands before the target in an image's name [headrace-];
                   with a registry: registry.example/team/headrace-
  --tag TAG        the tag [the version in pyproject.toml]
  --source URL     where the code can be found, for the label of that name
  --out FOLDER     where bills of materials go, as TARGET.cdx.json [.build/images]
  --push           push each image, and print its name by digest, as the
                   Helm chart's image.digest wants it
  --dry-run        print what would be run, and run nothing

Each image is labelled with title, version, revision, time of the commit and
licence (org.opencontainers.image.*), and holds a bill of its Python packages
at /opt/headrace/sbom.cdx.json (CycloneDX 1.6).

  deploy/build-images.sh --prefix registry.example/headrace- --push
  deploy/build-images.sh server -- --build-arg SERVER_EXTRAS=server,cli,images,otel,delta
HELP
}

fail() {
  echo "build-images.sh: $1; see --help" >&2
  exit 2
}

cd "$(dirname "$0")/.."
prefix=headrace- tag='' source='' out=.build/images push='' dry='' targets=()
while (($#)); do
  case $1 in
    --prefix | --tag | --source | --out)
      (($# > 1)) || fail "$1 wants a value"
      declare "${1#--}=$2"
      shift ;;
    --push) push=1 ;;
    --dry-run) dry=1 ;;
    -h | --help) usage; exit ;;
    --) shift; break ;;
    -*) fail "there is no option $1 (options of docker build stand after --)" ;;
    *) grep -q "^FROM .* AS $1\$" deploy/Dockerfile || fail "deploy/Dockerfile has no stage $1"
       targets+=("$1") ;;
  esac
  shift
done
((${#targets[@]})) || targets=(server converter)

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
revision=$(git rev-parse HEAD)
# A build of what no commit has must not pass for that commit.
[[ -z $(git status --porcelain) ]] || revision+=-dirty
labels=(
  --label "org.opencontainers.image.version=$version"
  --label "org.opencontainers.image.revision=$revision"
  --label "org.opencontainers.image.created=$(git show -s --format=%cI HEAD)"
)
[[ -z $source ]] || labels+=(--label "org.opencontainers.image.source=$source")

run() {
  if [[ -n $dry ]]; then
    printf '%q ' "$@"
    echo
  else
    "$@"
  fi
}

run mkdir -p "$out"
for target in "${targets[@]}"; do
  image="$prefix$target:${tag:-$version}"
  run docker build -f deploy/Dockerfile --target "$target" -t "$image" "${labels[@]}" "$@" .
  # From a container that is never started. Stages without Python of ours have no bill.
  box=$([[ -n $dry ]] && echo CONTAINER || docker create "$image")
  run docker cp "$box:/opt/headrace/sbom.cdx.json" "$out/$target.cdx.json" ||
    echo "build-images.sh: $image holds no bill of materials" >&2
  run docker rm --volumes "$box"
  if [[ -n $push ]]; then
    run docker push "$image"
    run docker inspect --format '{{index .RepoDigests 0}}' "$image"
  fi
done
