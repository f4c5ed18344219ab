#!/bin/sh
# Says at once that this user cannot write into the checkout, where Snakemake would say it late and in other words.
if [ ! -e Snakefile ]; then
    printf 'found: no Snakefile in %s\nexpected: the checkout, mounted there\nwhat to do: docker compose up --build in the checkout, or docker run -v "$PWD":/gpufeed ...\n' "$PWD" >&2
    exit 2
fi
for part in . results; do
    if [ -e "$part" ] && [ ! -w "$part" ]; then
        own=$(stat -L -c %u:%g "$part")
        checkout=$(stat -c %u:%g .)
        user=$(id -u):$(id -g)
        name=$part
        [ "$part" = . ] && name='the checkout'
        if [ "$own" != "$checkout" ]; then # another user's folder in it, as a run as root leaves one
            remedy="sudo chown -R $checkout $part"
        elif [ "$own" != "$user" ]; then
            remedy="echo GPUFEED_USER=$own >> .env"
        else
            remedy="chmod u+w $part"
        fi
        printf 'found: %s of user %s, which user %s of the container may not write into\nexpected: the same user, who may write into the checkout and its results\nwhat to do: %s, then the same command again\n' "$name" "$own" "$user" "$remedy" >&2
        exit 2
    fi
done
exec "$@"
