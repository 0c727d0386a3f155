#!/usr/bin/python3
"""Checkpoints as the CLI gets them: downloads, and what is wrong with their bytes."""
import hashlib
import json
import os
import struct
import sys
import tempfile
import unittest

import grpc

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cli_testing import ServerTest, strata  # pylint: disable=wrong-import-position
from fake_server import NAME, Refusal, job, stubs  # pylint: disable=wrong-import-position

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def write_checkpoint(folder):
    """A checkpoint of one tensor, step 7. The digest of its manifest."""
    path = os.path.join(folder, "step-000000000007")
    os.mkdir(path)
    files, tensors = [], []
    for state in ("master", "m", "v"):
        header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
        header += b" " * (-len(header) % 8)
        data = struct.pack("<Q", len(header)) + header + bytes(16)
        with open(os.path.join(path, state + ".safetensors"), "wb") as file:
            file.write(data)
        crc = f"{crc32c(data):08x}"
        files.append({"name": state + ".safetensors", "bytes": len(data), "crc32c": crc, "block_crc32c": crc})
        tensors.append({"class": state, "name": "w", "dtype": "F32", "shape": [4], "file": state + ".safetensors", "elements": [0, 4]})
    manifest = json.dumps({
        "format": "strata-checkpoint", "version": 1, "job_uid": "u-1", "attempt": 1, "step": 7, "model": {}, "block_bytes": 4 << 20,
        "state": {"optimizer_step": 7, "data_cursor": 0, "seed": 0, "loss_scale": 1.0, "loss_scale_good_steps": 0, "skipped_steps": 0,
                  "tokens": 0, "extra": {}},
        "files": files, "tensors": tensors}).encode()
    with open(os.path.join(path, "manifest.json"), "wb") as file:
        file.write(manifest)
    return hashlib.sha256(manifest).hexdigest()


class CheckpointHereTest(ServerTest):
    """Checkpoints in a folder of this machine, and a trainer that says what it was asked."""

    def setUp(self):
        super().setUp()
        self.folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        self.path = os.path.join(self.folder, "step-000000000007")
        self.digest = write_checkpoint(self.folder)
        with open(os.path.join(self.folder, "strata-trainer"), "w", encoding="ascii") as file:
            file.write('#!/bin/sh\nprintf "%s\\n" "$*"\nexit $STRATA_TEST_EXIT\n')
        os.chmod(file.name, 0o755)
        checkpoint = stubs.checkpoints.Checkpoint(name=NAME + "/checkpoints/7", step=7, path=self.path, digest=self.digest)
        self.answer("ListCheckpoints", stubs.checkpoints.ListCheckpointsResponse(checkpoints=[checkpoint]))
        self.answer("GetCheckpoint", checkpoint)

    def generate(self, what, *arguments, code=0):
        done = self.run_cli("--bin-dir", self.folder, "generate", what, "--prompt", "It is", "--max-tokens", "9", *arguments,
                            env={**os.environ, "STRATA_TEST_EXIT": str(code)})
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout

    def test_generated_text_in_every_format(self):
        said = f"generate --checkpoint {self.path} --digest {self.digest} --prompt It is --max-tokens 9 --seed 0 --temperature 0.8"
        self.assertEqual(self.generate("austen-ab12"), said + "\n")
        expected = {"checkpoint": self.path, "step": 7, "prompt": "It is", "text": said, "tokens": 9}
        self.assertEqual(json.loads(self.generate("austen-ab12", "-o", "json")), expected)
        lines = self.generate("austen-ab12", "-o", "jsonl").splitlines()
        self.assertEqual([json.loads(line) for line in lines], [expected])
        self.assertIn("step: 7\n", self.generate("austen-ab12", "-o", "yaml"))
        self.assertIn(" --digest  --prompt ", json.loads(self.generate(self.path, "-o", "json"))["text"], "of a folder nobody knows it")
        self.assertEqual(self.generate("austen-ab12", "-o", "json", code=3), "", "no text without its end")

    def test_without_a_checkpoint_the_job_s_state_says_why(self):
        self.answer("ListCheckpoints", stubs.checkpoints.ListCheckpointsResponse())
        for state, told in (("RUNNING", "austen-ab12 is RUNNING and has no committed checkpoint yet"),
                            ("FAILED", "austen-ab12 is FAILED and has left no checkpoint: `strata get austen-ab12`")):
            self.answer("GetJob", job(state))
            done = self.run_cli("checkpoint", "verify", "austen-ab12")
            self.assertEqual(done.returncode, 3, done.stderr)
            self.assertIn(told, done.stderr)

    def test_a_manifest_that_is_not_the_committed_one_is_not_exported(self):
        with open(os.path.join(self.path, "manifest.json"), "ab") as file:
            file.write(b" ")
        out = os.path.join(self.folder, "out")
        done = self.run_cli("checkpoint", "export", "austen-ab12", "--out", out)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("committed was " + self.digest, done.stderr)
        done = strata("checkpoint", "export", self.path, "--out", out)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn('manifest.json: "model"', done.stderr)
        self.assertFalse(os.path.exists(out))

    def test_an_export_that_cannot_be_written_is_8(self):
        done = strata("checkpoint", "export", self.path, "--out", "/proc/strata/out")
        self.assertEqual((done.returncode, done.stdout), (8, ""))
        self.assertIn("error: --out: ", done.stderr)


class DownloadTest(ServerTest):
    """Checkpoints that are not on this machine: fetched in chunks, each byte checked before it is used."""

    FILES = {"master.safetensors": bytes(range(256)) * 20, "manifest.json": b"{}"}

    def setUp(self):
        super().setUp()
        self.temp = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        self.spoil = None
        self.broken = 0
        files = [stubs.checkpoints.CheckpointFile(path=path, bytes=len(data), crc32c=crc32c(data)) for path, data in self.FILES.items()]
        self.checkpoint = stubs.checkpoints.Checkpoint(name=NAME + "/checkpoints/7", step=7, path="/elsewhere/step-000000000007",
                                                       digest="00" * 32, files=files)
        self.answer("ListCheckpoints", stubs.checkpoints.ListCheckpointsResponse(checkpoints=[self.checkpoint]))
        self.answer("GetCheckpoint", self.checkpoint)

        def read(request):
            data = self.FILES[request.path]
            for offset in range(request.offset, len(data), 1000):
                piece = data[offset:offset + 1000]
                chunk = stubs.checkpoints.FileChunk(offset=offset, data=piece, crc32c=crc32c(piece), total_bytes=len(data))
                if self.spoil:
                    self.spoil(chunk)
                yield chunk
                if offset == 2000 and not self.broken:
                    self.broken += 1
                    raise Refusal(UNAVAILABLE, "lost")
        self.server.handlers["ReadCheckpointFile"] = read

    def verify(self):
        done = self.run_cli("checkpoint", "verify", "austen-ab12", env={**os.environ, "TMPDIR": self.temp})
        self.assertEqual(os.listdir(self.temp), [], "the temporary folder is removed")
        return done

    def test_resumes_and_then_judges_the_whole(self):
        done = self.verify()
        # All bytes came as the server lists them; but this manifest is not the one that was committed.
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("manifest.json", done.stderr)
        self.assertIn("digest", done.stderr)
        offsets = [request.offset for request in self.server.requests("ReadCheckpointFile")]
        self.assertEqual(offsets, [0, 3000, 0])

    def test_a_wrong_byte_is_data_loss_with_its_place(self):
        def spoil(chunk):
            if chunk.offset == 4000:
                chunk.data = b"x" + chunk.data[1:]
        self.spoil = spoil
        done = self.verify()
        self.assertEqual(done.returncode, 1)
        for text in ("master.safetensors", "offset 4000", "CRC-32C"):
            self.assertIn(text, done.stderr)

    def test_a_skipped_chunk_is_noticed(self):
        def spoil(chunk):
            chunk.offset += 1000 if chunk.offset >= 1000 else 0
        self.spoil = spoil
        self.assertIn("got offset 2000 instead of 1000", self.verify().stderr)

    def test_a_short_file_is_noticed(self):
        self.checkpoint.files[1].bytes = 3
        self.answer("GetCheckpoint", self.checkpoint)
        self.assertIn("manifest.json has 2 bytes", self.verify().stderr)

    def test_files_outside_the_checkpoint_are_refused(self):
        for path in ("../evil", "/etc/evil", "a/../../evil", ""):
            self.checkpoint.files[0].path = path
            self.answer("GetCheckpoint", self.checkpoint)
            self.assertIn("outside the checkpoint", self.verify().stderr, path)


if __name__ == "__main__":
    unittest.main(verbosity=2)
