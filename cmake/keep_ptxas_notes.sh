#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# keep_ptxas_notes.sh COMPILER ARGS...: runs the compiler and moves what `ptxas -v` says from its messages to OBJECT.ptxas.
object=""
previous=""
for word; do
  [ "$previous" != -o ] || object=$word
  previous=$word
done
[ -n "$object" ] || exec "$@"
messages=$object.messages
code=0
"$@" 2>"$messages" || code=$?
notes='^ptxas info |bytes stack frame|^ *[0-9]* bytes (gmem|cmem)'
grep -E "$notes" "$messages" >"$object.ptxas"
grep -vE "$notes" "$messages" >&2
rm -f "$messages"
exit "$code"
