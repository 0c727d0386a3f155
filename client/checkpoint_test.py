#!/usr/bin/python3
"""Checkpoints as the CLI gets them: downloads, and what is wrong with their bytes."""
import os
import sys
import tempfile
import unittest

import grpc

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cli_testing import ServerTest  # pylint: disable=wrong-import-position
from fake_server import NAME, Refusal, stubs  # pylint: disable=wrong-import-position

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


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
