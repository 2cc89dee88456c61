"""A script comes to the commands that a shell would run, worked out without running any; what it cannot know stays."""

import re
from contextlib import suppress
from pathlib import Path

import pytest
from counting import calls

from memplan.errors import InvalidJob
from memplan.frameworks.commands.scripts import run_script


def commands(text: str) -> list[list[str]]:
    return [list(command.texts) for command in run_script(text, "a.sh").commands]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("B=128; P=4; G=8\nrun $((B / P / G)) $(( (B+1)%2 ? 7 : 9 ))", "run 4 7"),
        ("B=16\nrun $(expr $B / 2) `expr $B \\* 3` $(echo $B/4 | bc)", "run 8 48 4"),
        ("A=2\nlet A=A*3\n((B = A ** 2, B += 1))\nlet B++\nrun $A $B", "run 6 38"),
        ("A=4\nX=$[$A/(1*2)]\nrun $X $[A + 1]", "run 2 5"),
        ("run $((NOBODY / 2))", "run|$((NOBODY / 2))"),
        ("run $((8 / 0)) $(( 5", "error"),
        ("run $(python -c \"print(64 // 8)\") $(python3 -c 'print(int(9/2))')", "run 8 4"),
    ],
)
def test_sums(text: str, words: str) -> None:
    if words == "error":
        with pytest.raises(InvalidJob, match="no closing"):
            commands(text)
        return
    assert commands(text)[-1] == (words.split("|") if "|" in words else words.split())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("run ${X:-8} ${X} ${Y:=9} $Y ${Y:+on} ${X:+off}end", "run 8 ${X} 9 9 on end"),
        (
            "M=a/b-7.sh\nrun ${M##*/} ${M%.sh} ${M%%/*} ${M#*/} ${M/-/_} ${M:0:1} ${#M} ${M^^}",
            "run b-7.sh a/b-7 a b-7.sh a/b_7.sh a 8 A/B-7.SH",
        ),
        ("A=(x 'y z' w)\nA+=(v)\nrun ${#A[@]} ${A[0]} ${A[3]} ${A[-1]}", "run 4 x v v"),
        ("declare -A A=([big]=72 [small]=7)\nrun ${A[big]}", "run 72"),
        ("A=(x y z)\nrun ${A[$((4 % ${#A[@]}))]}", "run y"),
        ("read -r -d '' T <<EOF\na --b 1 --key $NOBODY\nEOF\nrun $T", "run a --b 1 --key $NOBODY"),
        (
            'N=${N:-}\nM=4\nrun $([ -n "$N" ] && echo "--a $N") $([[ $M = 4 ]] && echo "--b $M" || echo --c)',
            "run --b 4",
        ),
        ('M=4\nrun $([ "$M" = 5 ] && echo --d || echo --e) $([ -n "$(NOBODY)" ] && echo --f)', "run --e --f"),
        ("D=$(python3 -c 'import torch_npu' 2>/dev/null && echo npu || echo gpu)\nrun $D", "run gpu"),
        ("if command -v npu-smi > /dev/null; then D=npu; else D=gpu; fi\nrun $D", "run gpu"),
        ("run --a 1 `# a remark between arguments` --b 2", "run --a 1 --b 2"),
        ("IFS=, read -ra G <<< '0,1,2'\nrun ${#G[@]} $(echo 0,1 | tr ',' '\\n' | wc -l)", "run 3 2"),
        ("G=0,1,2\nrun $(echo $G | awk -F, '{print NF}') $(basename a/b.sh .sh) $(dirname a/b)", "run 3 b a"),
        ("set -- a b c\nshift\nrun $1 $# $@", "run b 2 b c"),
        ("A=1 B=2\nexport C=$A$B\nreadonly D=$C\nrun $C $D", "run 12 12"),
        ("N=MODEL\nMODEL=x\nrun ${!N}", "run x"),
    ],
)
def test_variables(text: str, words: str) -> None:
    assert commands(text)[-1] == words.split()


def test_a_quote_stands_in_a_quoted_word_behind_a_backslash() -> None:
    text = "run --x $'\\'{\"a\": 1}\\'' $'512' \"$'\"\n"
    assert commands(text)[-1] == ["run", "--x", "'{\"a\": 1}'", "512", "$'"]


def test_words_keep_their_quotes_together() -> None:
    text = 'A=(--x \'a b\')\nC="-m mod"\nrun "${A[@]}" $C "$C" \'$1\' "q\\"r" --k=\'a b\''
    assert commands(text)[-1] == ["run", "--x", "a b", "-m", "mod", "-m mod", "$1", 'q"r', "--k=a b"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("run --m <ROOT>/model --n 3", ["run", "--m", "<ROOT>/model", "--n", "3"]),
        ("run --m <YOUR_PATH> --n 3", ["run", "--m", "<YOUR_PATH>", "--n", "3"]),
        ("run a.path=<path to model> --n 3", ["run", "a.path=<path to model>", "--n", "3"]),
        ("run <in.txt >out.txt", ["run"]),
        ("run <in.txt> out.txt", ["run", "<in.txt>", "out.txt"]),
        ("run < in.txt > out.txt", ["run"]),
    ],
)
def test_what_is_to_be_filled_in_is_a_word(text: str, words: list[str]) -> None:
    assert [word for word in commands(text)[-1] if word not in (">", "<", "out.txt", "in.txt")] == [
        word for word in words if word != "out.txt"
    ]


@pytest.mark.parametrize("name", ["$NOBODY", "${NOBODY}", "$1", "$(nvidia-smi -L | wc -l)", "`hostname`", "${N%%x*}"])
def test_what_nobody_knows_stays_one_word_as_it_is_written(name: str) -> None:
    assert commands(f"run --n {name} end") == [["run", "--n", name, "end"]]
    assert commands(f'X={name}\neval "run $X end"') == [["run", name, "end"]]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("A=1\nif [ $A -eq 1 ]; then\n run yes\nelse\n run no\nfi", ["run yes"]),
        ('A=lora\nif [[ $A == l* && ! -z "$A" ]]; then run yes; else run no; fi', ["run yes"]),
        ('if [ -z "$X" ]; then X=8; fi\nrun $X', ["run 8"]),
        ('X=$2\nif [ "$X" == "" ]; then X=8; fi\nrun $X', ["run 8"]),
        ('X=4\nif [ "$2" == "" ]; then X=8; fi\nrun $X', ["run 4"]),
        ('if [ "$1" = x ]; then\n run a\nelse\n run b\nfi', ["run a", "run b"]),
        ('if [ -z "$1" ]; then echo usage; exit 1; fi\nrun a', ["run a"]),
        ("mkdir -p x && run a || run b", ["mkdir -p x", "run a"]),
        ("M=7b\ncase $M in 7b|8b) N=1 ;; *) N=2 ;; esac\nrun $N", ["run 1"]),
        ("f() { local n=$2; run $1 $n; }\nf a b\nf c\nrun $n", ["run a b", "run c", "run $n"]),
        ("function f {\n run $1\n}", ["run $1"]),
        ("for m in a b; do run $m; done", ["run a"]),
        ("for i in {1..3}; do run $i; done\nfor ((j=5; j<9; j++)); do run $j; done", ["run 1", "run 5"]),
        ("while [ $# -gt 0 ]; do case $1 in --x) X=$2; shift;; esac; done\nrun ${X:-no}", ["run no"]),
        (
            'set -- --x=1 --y "a $Z"\nT=$(getopt -o x: --long x:,y: -- "$@")\neval set -- "$T"\n'
            "while true; do case $1 in --x) X=$2; shift 2;; --y) Y=$2; shift 2;; --) break;; esac; done\nrun $X $Y",
            ["run 1 a $Z"],
        ),
        ('bash -c \'run a $B\'\nCMD="run b"\n$CMD\neval "$CMD c"', ["run a $B", "run b", "run b c"]),
        ("run a > log 2>&1 | tee x &\n( cd y; run b ) 2> /dev/null", ["run a", "run b"]),
        ("run a \\\n  --b 1 \\  \n  --c \\\n\nrun d", ["run a --b 1 --c", "run d"]),
        ("exit 0\nrun a", []),
        ('A=${A:-}\nif [ -z "${A}" ]; then echo set A; exit 1; fi\nrun a', ["run a"]),
        ('A=${A:-}\n[ -n "$A" ] || exit 1\nrun a', ["run a"]),
        ("need() {\nif [[ -e $1 ]]; then\nreturn 0\nfi\nexit 2\n}\nneed /data/a\nrun a", ["run a"]),
        ('A=x\nif [ -n "$A" ]; then run b; exit 0; fi\nrun a', ["run b"]),
    ],
)
def test_what_would_run(text: str, found: list[str]) -> None:
    assert [" ".join(words) for words in commands(text) if words[0] != "tee"] == found


def test_what_is_taken_of_several_is_said() -> None:
    text = 'K=0\nif [ "$1" = x ]; then K=1; fi\nfor m in a b; do\n run $m $K\n run alone\ndone'
    first, second = run_script(text, "a.sh").commands
    assert [*first.texts] == ["run", "a", "0"]
    assert "line 3: a is taken" in first.remarks[0]
    assert first.remarks[1].endswith("is taken: K")
    assert second.remarks == ()


def test_a_comment_within_a_command_is_said() -> None:
    for between in ("\\\n  # --b 2 \\\n", "\\\n\n", "\n  "):  # the last: a backslash that was forgotten
        (command,) = run_script(f"run \\\n  --a 1 {between}  --c 3\n", "a.sh").commands
        assert [*command.texts] == ["run", "--a", "1", "--c", "3"], between
        assert re.search("line [23]: a shell ends the command here", command.remarks[0]), between
    behind = "run \\\n  a.b=1 \n  \\\n  `# of c` \\\n  `# and more` \\\n  +c.d=2 \\\n  2>&1 | tee log\n"
    command = run_script(behind, "a.sh").commands[0]
    assert [*command.texts] == ["run", "a.b=1", "+c.d=2"]
    assert "line 2: a shell ends the command here" in command.remarks[0]
    (command,) = run_script("cat <<EOF\n  --c 3\nEOF\nrun --a 1\n", "a.sh").commands
    assert not command.remarks


def test_words_have_their_lines() -> None:
    text = "ARGS=(\n  --a 1\n  --b 2\n)\nrun \\\n  ${ARGS[@]} \\\n  --c 3\n"
    (command,) = run_script(text, "a.sh").commands
    assert [(word.text, word.line) for word in command.words if word.text[:1] == "-"] == [
        ("--a", 2), ("--b", 3), ("--c", 7),
    ]  # fmt: skip


def test_files_that_a_script_writes() -> None:
    text = 'N=3\ncat <<EOF > ds.json\n{"a": $N, "it\'s": 1}\nEOF\n'
    text += "cat > raw.yaml <<'X'\nb: $N\nX\necho 'c: 1' >> raw.yaml\n"
    assert run_script(text, "a.sh").files == {"ds.json": '{"a": 3, "it\'s": 1}\n', "raw.yaml": "b: $N\nc: 1\n"}


def test_what_a_script_adds_to_a_file_that_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a: 1\n")
    text = "echo 'b: 2' >> a.yaml\necho 'c: 3' >> a.yaml\n"
    assert run_script(text, str(tmp_path / "a.sh")).files == {"a.yaml": "a: 1\nb: 2\nc: 3\n"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A=1\nJOB=$(cat <<EOF\ncd /\nrun $A $B\nEOF\n)\necho \"$JOB\" | tr -d '\\r' | kubectl exec -i p -- /bin/bash",
         "run 1 $B"),
        ("ssh host <<'EOF'\nrun $((4 * 2))\nEOF", "run 8"),
        ("apptainer exec --env 'B=2' x.sif bash -c 'if [ $B = 2 ]; then run $B; else exit; fi'", "run 2"),
        ("FREE=($(nvidia-smi))\nif [ ${#FREE[@]} -ge 8 ]; then run 8; fi", "run 8"),
        ("if [ ${SLURM_PROCID:-0} = 1 ]; then run head; else sleep 1; exit 0; fi", "run head"),
    ],
)  # fmt: skip
def test_scripts_that_other_shells_read(text: str, words: str) -> None:
    assert commands(text)[-1] == words.split()


def test_nothing_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    commands(f"A=$(touch {mark})\n`touch {mark}`\neval 'touch {mark}'\nbash -c 'touch {mark}'\ntouch {mark} > {mark}\n")
    assert not mark.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "f() { f; f; }\nf\n",
        "f() { if [ $1 ]; then f; else f; fi; }\nf\n",
        "A=x\n" + "A=$A$A$A$A\n" * 40 + "run $A\n",
        "if [ $1 ]; then " * 300 + "run\n" + "fi;" * 300,
        "f() { " * 5000,
        "run $(" * 2000,
        "eval 'eval " * 500,
        "A=" + "a" * 300 + "\n" + "run ${A%%*b*b*b*c}\n" * 4000,
        "run ${A:-" * 500 + "}" * 500,
        "A=(" + "x " * 30_000 + ")\n" + "run ${A[@]}\n" * 5000,
        "X=$((" + "(" * 390 + "\n",
    ],
    ids=range(11),
)
def test_hostile_scripts_end_soon(text: str) -> None:
    def read() -> None:
        with suppress(InvalidJob):
            assert len(commands(text)) <= 5000

    assert calls(read) < 20_000_000
