#!/bin/sh
# Says at once that this user cannot write into the checkout, where Snakemake would say it late and in other words.
if [ ! -e Snakefile ]; then
    printf 'found: no Snakefile in %s\nexpected: the checkout, mounted there\nwhat to do: docker compose up --build in the checkout, or docker run -v "$PWD":/gpufeed ...\n' "$PWD" >&2
    exit 2
fi
if [ ! -w . ] || [ ! -w results ]; then
    owner=$(stat -c %u:%g .)
    printf 'found: a checkout of user %s; the container runs as %s\nexpected: the same user, who may write into it and its results\nwhat to do: echo GPUFEED_USER=%s > .env, then the same command again\n' "$owner" "$(id -u):$(id -g)" "$owner" >&2
    exit 2
fi
exec "$@"
