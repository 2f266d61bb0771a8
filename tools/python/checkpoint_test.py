"""Compares tessera.checkpoint with the safetensors files that checkpoints were imported from."""

import array
import glob
import importlib.util
import json
import os
import shutil
import struct
import subprocess
import unittest

from tessera import checkpoint
from tessera.errors import InvalidArgument, NotFound, StatusError

ROOT = os.environ["ROOT"]
MODEL = os.path.join(ROOT, "tools/checkpoint/testdata/llama")


def safetensors(directory=MODEL):
    """The tensors of a model's files by name: shape, and their bytes."""
    tensors = {}
    for path in glob.glob(directory + "/*.safetensors"):
        with open(path, "rb") as file:
            data = file.read()
        (size,) = struct.unpack_from("<Q", data)
        for name, entry in json.loads(data[8 : 8 + size]).items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                tensors[name] = (entry["dtype"], tuple(entry["shape"]), data[8 + size + begin : 8 + size + end])
    return tensors


def import_model(directory, mesh):
    program = os.path.join(ROOT, "tools/checkpoint/checkpoint")
    subprocess.run([program, "import", MODEL, directory, *mesh], check=True, capture_output=True)


class CheckpointTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        import_model("whole", [])
        import_model("divided", ["--mesh=pp2,tp2"])
        import_model("narrow", ["--dtype=bf16"])

    def test_values_match_files(self):
        whole = checkpoint.open("whole")
        self.assertEqual((whole.step, len(whole.parts)), (0, 1))
        whole.verify()
        part = whole.part()
        files = safetensors()
        # Some parameters are several of the files' tensors, one below the other.
        values = {bytes(parameter.read()) for parameter in part.values()}
        everything = b"".join(values)
        for name, (dtype, shape, data) in files.items():
            if dtype == "F32":
                self.assertIn(data, everything, name)
        stored = sum(len(data) for _, _, data in files.values())
        self.assertEqual(sum(parameter.read().nbytes for parameter in part.values()), stored)
        for parameter in part.values():
            elements = 1
            for size in parameter.shape:
                elements *= size
            self.assertEqual(parameter.read().nbytes, 4 * elements)
            self.assertEqual(array.array("f", bytes(parameter.read("first_moment"))).tolist(), [0.0] * elements)

    def test_arrays_share_the_memory(self):
        if importlib.util.find_spec("numpy") is None:
            self.skipTest("there is no numpy")
        for parameter in checkpoint.open("whole").part().values():
            values = parameter.numpy()
            self.assertEqual((values.shape, str(values.dtype)), (parameter.shape, "float32"))
            self.assertEqual(values.tobytes(), bytes(parameter.read()))
            self.assertIsNotNone(values.base)
            if importlib.util.find_spec("torch") is not None:
                self.assertTrue((parameter.torch().numpy() == values).all())

    def test_parts_have_all_elements(self):
        divided = checkpoint.open("divided")
        self.assertEqual(len(divided.parts), 4)
        with self.assertRaisesRegex(InvalidArgument, "4 parts"):
            divided.part()
        least = min(sum(p.read().nbytes for p in divided.part(name).values()) for name in divided.parts)
        whole = sum(p.read().nbytes for p in checkpoint.open("whole").part().values())
        self.assertLess(least, whole)

    def test_dlpack(self):
        if importlib.util.find_spec("numpy") is None:
            self.skipTest("there is no numpy")
        import numpy

        for path in ("whole", "narrow"):
            for parameter in checkpoint.open(path).part().values():
                if parameter.dtype == "f32":
                    self.assertEqual(numpy.from_dlpack(parameter).tobytes(), bytes(parameter.read()))
                capsules = [parameter.__dlpack__(), parameter.__dlpack__(max_version=(1, 1))]
                del capsules  # Nobody took them.
                if importlib.util.find_spec("torch") is None:
                    continue
                import torch

                tensor = torch.from_dlpack(parameter)
                self.assertEqual(tuple(tensor.shape), parameter.shape)
                self.assertTrue(torch.equal(tensor, parameter.torch()))
                with self.assertRaises(BufferError):
                    parameter.__dlpack__(dl_device=(2, 0))

    def test_resharding_keeps_every_bit(self):
        divided = checkpoint.reshard("whole", "resharded", "pp2,tp2", zero=1)
        self.assertEqual(len(divided.parts), 4)
        back = checkpoint.reshard(divided.path, "back", "dp1")
        before, after = checkpoint.open("whole").part(), back.part()
        self.assertEqual(list(before), list(after))
        for name, parameter in before.items():
            self.assertEqual(bytes(parameter.read()), bytes(after[name].read()), name)
        with self.assertRaisesRegex(StatusError, "step"):
            checkpoint.reshard("whole", "resharded", "pp2,tp2")
        with self.assertRaises(InvalidArgument):
            checkpoint.reshard("whole", "other", "tp3")
        with self.assertRaisesRegex(InvalidArgument, "zero=4"):
            checkpoint.reshard("whole", "other", "dp1", zero=4)

    def test_export_and_import(self):
        checkpoint.export("divided", "exported")
        for name, (dtype, shape, data) in safetensors("exported").items():
            self.assertEqual((dtype, shape, data), safetensors()[name], name)
        self.assertEqual(sorted(safetensors("exported")), sorted(safetensors()))
        again = checkpoint.import_model("exported", "again", "tp2", dtype="bf16")
        self.assertEqual(len(again.parts), 2)
        with self.assertRaisesRegex(InvalidArgument, "fp64"):
            checkpoint.export("divided", "twice", dtype="fp64")
        with self.assertRaises(StatusError):
            checkpoint.export("divided", "exported")

    def test_bad_input(self):
        with self.assertRaises(NotFound):
            checkpoint.open("nowhere")
        part = checkpoint.open("whole").part()
        first = next(iter(part.values()))
        with self.assertRaisesRegex(NotFound, "it has value, first_moment, second_moment"):
            first.read("master")
        with self.assertRaises(KeyError):
            part["nothing"]
        with self.assertRaises(NotFound):
            checkpoint.open("whole").part("tp7")

    def test_damage_is_named(self):
        shutil.copytree("whole", "damaged")
        (path,) = glob.glob("damaged/*/*.state")
        with open(path, "r+b") as file:
            file.seek(os.path.getsize(path) // 2)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 1]))
        with self.assertRaises(StatusError) as caught:
            checkpoint.open("damaged").verify()
        self.assertEqual(caught.exception.code, "DATA_LOSS")
        self.assertIn(".state", str(caught.exception))


if __name__ == "__main__":
    unittest.main(verbosity=2)
