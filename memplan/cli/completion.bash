# Completion of memplan for bash.
_memplan() {
  local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" command="${COMP_WORDS[1]}"
  local at=$COMP_CWORD place=$COMP_CWORD takes= list= options=
  COMPREPLY=()
  if [ "$COMP_CWORD" = 1 ]; then
    COMPREPLY=($(compgen -W '@COMMANDS@' -- "$cur"))
    return
  fi
  if [ "$cur" = = ]; then cur=; at=$((at + 1)); fi
  if [ "${COMP_WORDS[at-1]}" = = ]; then
    prev="${COMP_WORDS[at-2]}" takes=1
    case "${COMP_WORDS[at-3]}" in @ASSIGNING@) prev="--${prev//_/-}";; esac
  fi
@CASES@  case "$cur" in -*) list="$options";; esac
  COMPREPLY=($(compgen -W "$list" -- "$cur"))
  case "${COMPREPLY[0]}" in *=) compopt -o nospace;; esac
}
complete -o bashdefault -o default -F _memplan memplan
