#!/usr/bin/python3
"""The command line: wrong usage, help, completion; nothing here needs a server."""
import os
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cli_testing import strata  # pylint: disable=wrong-import-position


class UsageTest(unittest.TestCase):
    def test_wrong_usage_is_2(self):
        for arguments in ([], ["nosuch"], ["ls", "-o", "xml"], ["get"], ["local"], ["completion", "tcsh"],
                          ["submit", "x", "--label", "novalue"], ["get", "a b"], ["watch", "projects/x/jobs"],
                          ["ls", "--limit", "-1"], ["--timeout", "nan", "ls"], ["--timeout", "inf", "ls"],
                          ["generate", "X", "--temperature", "nan"], ["ls", "--server", ""], ["ls", "--server", "127.0.0.1"],
                          ["ls", "--server", "host:99999"], ["ls", "--server", ":7411"], ["generate", "x", "--temperature", "-1"],
                          ["metrics", "x", "--series", "loss,los"], ["metrics", "x", "--min-step", "5", "--max-step", "3"]):
            done = strata(*arguments)
            self.assertEqual(done.returncode, 2, (arguments, done.stdout, done.stderr))
            self.assertEqual(done.stdout, "", arguments)
            self.assertTrue(done.stderr, arguments)

    def test_a_number_that_is_none_or_does_not_fit_is_2_and_names_the_flag(self):
        bench = ("bench", "offload")
        for command, flag, *values in (
                (("ls",), "--limit", "-1", "1.5", "9223372036854775808", "0x10"), (("ls",), "--timeout", "1e300", "-1", "5s", "1e400"),
                (("logs", "x"), "--tail", "many", "-1"), (("logs", "x"), "--attempt", "4294967297", "-1"),
                (("metrics", "x"), "--min-step", "1e3"), (("metrics", "x"), "--max-step", "99999999999999999999"),
                (("metrics", "x"), "--max-points", "2147483648"), (("generate", "x"), "--seed", "-1", "18446744073709551616", "nan"),
                (("generate", "x"), "--max-tokens", "0", "1048577"), (("generate", "x"), "--temperature", "nan", "101", "0x1"),
                (("local", "run", "x"), "--sample", "-1", "4294967296"), (bench, "--seed", "-1", "18446744073709551616"),
                (bench, "--clip", "1e300", "-1", "inf", "1e-300"), (bench, "--steps", "0", "1e3"), (bench, "--layers", "0", "4294967297"),
                (bench, "--tokens", "-5", "1x"), (bench, "--micro-batches", "0"), (bench, "--depth", "65"), (bench, "--io-threads", "-1"),
                (bench, "--io-depth", "0"), (bench, "--threads", "2x"), (bench, "--nvme-weight", "nan", "0")):
            for value in values:
                done = strata(*command, f"{flag}={value}")
                self.assertEqual((done.returncode, done.stdout), (2, ""), (flag, value, done.stderr))
                self.assertIn(flag, done.stderr, value)

    def test_help_is_0(self):
        done = strata("--help")
        self.assertEqual(done.returncode, 0)
        self.assertIn("8 rejected, 9 conflict", done.stdout)

    def test_no_server_is_5_and_says_where_it_looked(self):
        done = strata("--server", "127.0.0.1:1", "ls")
        self.assertEqual(done.returncode, 5, done.stderr)
        self.assertIn("127.0.0.1:1", done.stderr)
        self.assertIn("--server", done.stderr)

    def test_version_needs_no_server(self):
        done = strata("--server", "127.0.0.1:1", "version")
        self.assertEqual((done.returncode, done.stdout.split()[0]), (0, "strata"))

    def test_completion_scripts_work(self):
        for shell in ("bash", "zsh", "fish"):
            done = strata("completion", shell)
            self.assertEqual(done.returncode, 0)
            self.assertIn("checkpoint", done.stdout)
        script = strata("completion", "bash").stdout

        def complete(*words):
            program = script + "\nCOMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); _strata; echo \"${COMPREPLY[@]}\"\n"
            return subprocess.run(["bash", "-c", program, "bash", *words], capture_output=True, text=True, check=True).stdout.split()
        self.assertEqual(complete("strata", "checkp"), ["checkpoint"])
        self.assertEqual(complete("strata", "checkpoint", "ex"), ["export"])
        self.assertEqual(complete("strata", "local", "run", "--nvme-"), ["--nvme-path"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
