"""The first instructions of the command, in a process of their own."""

import subprocess
import sys

PRESSED_WHILE_READ = """
import os, signal, sys
import forebay.__main__ as command
class Pressed:
    def find_spec(self, name, path=None, target=None):
        if name == "forebay.cli.main":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Pressed())
sys.argv = ["forebay", "--version"]
command.main()
"""


def test_ctrl_c_while_the_program_is_read_is_no_traceback():
    ended = subprocess.run([sys.executable, "-c", PRESSED_WHILE_READ], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_python_dash_m_is_the_command():
    told = subprocess.run([sys.executable, "-m", "forebay", "--version"], capture_output=True, text=True)
    assert told.returncode == 0
    assert told.stdout.startswith("forebay ")
