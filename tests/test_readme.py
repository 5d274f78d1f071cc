"""The README's promises: code that runs, commands that CI runs."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_code_blocks_run_one_after_another_and_print_what_they_say():
    blocks = re.findall(r"```python\n(.*?)```", README, re.S)
    assert len(blocks) == 5
    assert len(blocks[0].strip().splitlines()) == 6
    ran = subprocess.run(
        [sys.executable, "-c", "\n".join(blocks)], capture_output=True, text=True, check=True
    )
    first, *middle, last, tuned = ran.stdout.strip().split("\n")
    # q_1(20) of Figure 3 and its abscissa, to the digits printed.
    assert "16.27188" in first
    assert "0.304157806659" in first
    values = [float(word) for word in " ".join(middle).replace("[", "").replace("]", "").split()]
    assert [value < -1e-12 for value in values] == [True] * 5 + [False] * 5
    best, abscissa, double = last.split()
    # ((L - m) / (L + 1))^(L + 1) / (lambda D) = 1 / 27 / 15, and -L (mu + 1 / D) / (L + 1).
    assert abs(float(best) - 1 / 405) < 1e-8
    assert abs(float(abscissa) + 4 / 3) < 1e-6
    assert double == "True"
    assert tuned in README


def test_ci_runs_the_test_command_of_the_readme():
    commands = [line for line in README.splitlines() if "-m pytest" in line]
    assert len(commands) == 1
    assert "grep -m 1 -- '-m pytest' README.md" in (ROOT / ".ci/run").read_text(encoding="utf-8")


def test_the_pictures_are_there():
    pictures = re.findall(r'<img src="([^"]+)"', README)
    assert len(pictures) == 4
    assert all((ROOT / picture).is_file() for picture in pictures)


def test_files_that_docstrings_name_are_there():
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "jaxlb").rglob("*.py")]
    named = re.findall(r"`((?:tests|experiments)/[\w/.]+)`", "\n".join([*sources, README]))
    assert len(named) > 50
    assert not [name for name in named if not (ROOT / name).exists()]
