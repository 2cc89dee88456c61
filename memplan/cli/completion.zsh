#compdef memplan
_memplan() {
  local prev="${words[CURRENT-1]}" command="${words[2]}" cur="${words[CURRENT]}"
  local place=$((CURRENT - 1)) takes= list= options=
  if [ "$CURRENT" = 2 ]; then
    compadd -- @COMMANDS@
    return
  fi
  if [[ "$cur" == *=* ]]; then
    case "$prev" in @ASSIGNING@) prev="--${${cur%%=*}//_/-}";; *) prev="${cur%%=*}";; esac
    compset -P '*='; cur="${cur#*=}" takes=1
  fi
@CASES@  case "$cur" in -*) list="$options";; esac
  case "$list" in *=*) compadd -S '' -- ${=list};; ?*) compadd -- ${=list};; esac
  case "$cur" in -*) ;; *) [ -n "$takes" ] && [ -n "$list" ] || _files;; esac
}
if [ "$funcstack[1]" = _memplan ]; then _memplan "$@"; else compdef _memplan memplan; fi
