"""The first instructions of the command, in a process of their own."""

import subprocess
import sys

PRESSED_WHILE_READ = """
import os, signal, sys
signal.signal(signal.SIGINT, {heard})
import forebay.__main__ as command
class Pressed:
    def find_spec(self, name, path=None, target=None):
        if name == "forebay.cli.main":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Pressed())
sys.argv = ["forebay", "--version"]
command.main()
"""


def pressed(heard):
    script = PRESSED_WHILE_READ.format(heard=heard)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)


def test_ctrl_c_while_the_program_is_read_is_no_traceback():
    ended = pressed("signal.default_int_handler")
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_a_background_job_stays_deaf_to_ctrl_c():
    ended = pressed("signal.SIG_IGN")
    assert ended.returncode == 0
    assert ended.stdout.startswith("forebay ")


def test_python_dash_m_is_the_command():
    told = subprocess.run([sys.executable, "-m", "forebay", "--version"], capture_output=True, text=True)
    assert told.returncode == 0
    assert told.stdout.startswith("forebay ")
