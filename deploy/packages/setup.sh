#!/bin/sh
# What the Debian and the RPM package do beside unpacking files; installed as /usr/lib/rankmend/setup.
#
#   setup activate    make this version's folder, let `current` point to it, and update the hook folder
#   setup restart     start the agent; restart services that ran, if the new version accepts their configuration
#   setup clean       remove the folders of versions that no process uses
#   setup deactivate  stop the services, remove `current` and all folders that no process uses
#
# The package manager owns /opt/rankmend/packaged and replaces its files during an upgrade. No process runs from there:
# `activate` makes /opt/rankmend/versions/ID of hard links to them. A launcher started from an older version
# keeps its folder, with the modules that it imports later and the programs that it starts later.
set -eu

OPT=/opt/rankmend
PACKAGED=$OPT/packaged
VERSIONS=$OPT/versions
CURRENT=$OPT/current
HOOK=/var/lib/rankmend/hook
UNITS='rankmend-agent.service rankmend-agent-helper.socket rankmend-agent-helper.service rankmend-controller.service'
PROC=${RANKMEND_SETUP_PROC:-/proc}

say() { echo "rankmend: $*" >&2; }

activate() {
    id=$(cat $PACKAGED/version-id)
    mkdir -p $VERSIONS
    rm -rf $VERSIONS/.new-* $VERSIONS/.old-*  # of a run that failed
    new=$VERSIONS/.new-$id
    # Without hard links, as on some network file systems, a copy does the same.
    cp -al $PACKAGED "$new" 2>/dev/null || { rm -rf "$new"; cp -a $PACKAGED "$new"; } || {
        rm -rf "$new"
        say "cannot make $VERSIONS/$id; make room, then: dpkg --configure -a"
        return 1
    }
    [ ! -e "$VERSIONS/$id" ] || mv -T "$VERSIONS/$id" "$VERSIONS/.old-$id"
    mv -T "$new" "$VERSIONS/$id"
    rm -rf $VERSIONS/.old-*
    ln -sfn "versions/$id" $CURRENT.new
    mv -T $CURRENT.new $CURRENT
    mkdir -p "${HOOK%/*}"
    $CURRENT/bin/rankmend watch env --folder $HOOK >/dev/null
}

# Prints the first file of /proc that names a path below a folder: as program, argument, variable or mapped file.
user_of() {
    # The pattern comes from the standard input, so that grep does not find itself. Reading a process whose memory is
    # locked by a stuck driver can hang: then the folder counts as used.
    code=0
    found=$(echo "$1/" | timeout 30 grep -lsF -m 1 -f - "$PROC"/[0-9]*/cmdline "$PROC"/[0-9]*/environ "$PROC"/[0-9]*/maps) || code=$?
    [ "$code" -ne 124 ] || found="$PROC/unknown/cmdline"
    echo "$found" | head -n 1
}

clean() {
    keep=$(readlink $CURRENT 2>/dev/null || true)
    for folder in "$VERSIONS"/*; do
        [ -d "$folder" ] && [ "versions/${folder##*/}" != "$keep" ] || continue
        found=$(user_of "$folder")
        if [ -z "$found" ]; then
            rm -rf "$folder"
        else
            pid=${found%/*}
            say "kept $folder: process ${pid##*/} uses it. \`/usr/lib/rankmend/setup clean\` removes it later"
        fi
    done
    rmdir $VERSIONS 2>/dev/null || true
}

# Prints the agent that runs and is not the package's, if there is one.
foreign_agent() {
    for folder in "$PROC"/[0-9]*; do
        line=$(tr '\0' ' ' <"$folder/cmdline" 2>/dev/null) || continue
        case $line in
        *$OPT/versions/*) ;;
        *[/\ ]rankmend\ agent\ * | *"-m rankmend.cli agent "*) echo "process ${folder##*/} ($line)" && return ;;
        esac
    done
}

# Prints why the current version would refuse a configuration; nothing if it accepts it, or if there is none.
refusal_of() { # PART CHECK
    timeout 30 $CURRENT/bin/rankmend doctor "$1" --json 2>/dev/null | $CURRENT/bin/python3 -c '
import json, sys
for check in json.load(sys.stdin)["checks"]:
    if check["check"] == sys.argv[1] and check["outcome"] == "broken":
        print(check["found"])' "$2" 2>/dev/null || true
}

restart_one() { # UNIT PART CHECK
    why=$(refusal_of "$2" "$3")
    if [ -n "$why" ]; then
        say "$1 was not restarted, because this version refuses its configuration: $why"
        say "The old version goes on. Mend the file, then: systemctl restart $1"
    else
        systemctl restart "$1" || say "$1 did not start: journalctl -u $1"
    fi
}

# systemctl as the package manager's own tool calls it: a policy of the site or of an image build may forbid a start.
may_start() {
    [ -d /run/systemd/system ] || return 1
    [ ! -x /usr/sbin/policy-rc.d ] || /usr/sbin/policy-rc.d "$1" start >/dev/null 2>&1
}

restart() {
    [ -d /run/systemd/system ] || return 0
    systemctl daemon-reload
    [ ! -e /etc/systemd/system/rankmend-agent.service ] ||
        say "/etc/systemd/system/rankmend-agent.service hides the package's unit: remove it unless it is meant to"
    other=$(foreign_agent)
    if [ -n "$other" ]; then
        say "another agent runs, not the package's: $other"
        say "The package's agent was not started. Stop the other one, then: systemctl start rankmend-agent"
    elif systemctl is-active --quiet rankmend-agent; then
        restart_one rankmend-agent agent agent_config
    elif [ "${1:-}" = first ] && systemctl is-enabled --quiet rankmend-agent && may_start rankmend-agent; then
        systemctl start rankmend-agent-helper.socket rankmend-agent ||
            say "the agent did not start: journalctl -u rankmend-agent"
    fi
    ! systemctl is-active --quiet rankmend-controller ||
        restart_one rankmend-controller controller controller_config
}

deactivate() {
    [ ! -d /run/systemd/system ] || systemctl stop $UNITS || true
    rm -f $CURRENT
    rm -f $HOOK/sitecustomize.py $HOOK/rankmend-site.py # jobs that start now take no hook; those that run keep theirs
    clean
}

case ${1:-} in
activate | restart | clean | deactivate) "$@" ;;
*) say "usage: $0 activate|restart|clean|deactivate" && exit 2 ;;
esac
