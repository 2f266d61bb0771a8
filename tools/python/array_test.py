"""tessera.optim.AdamW on arrays of numpy, against a reference in Python; and arrays that it must refuse."""

import importlib.util
import math
import sys
import unittest

if importlib.util.find_spec("numpy") is None:
    print("skipped: this Python has no numpy")
    sys.exit(0)

import numpy  # noqa: E402

from tessera.errors import InvalidArgument  # noqa: E402
from tessera.optim import AdamW  # noqa: E402

HAS_TORCH = importlib.util.find_spec("torch") is not None


class Reference:
    """AdamW in float64."""

    def __init__(self, lr, betas, eps, weight_decay):
        self.lr, self.betas, self.eps, self.weight_decay = lr, betas, eps, weight_decay
        self.state = {}

    def step(self, parameters, max_norm):
        norm = math.sqrt(sum(float((g.astype("f8") ** 2).sum()) for _, g in parameters.values()))
        clip = min(1.0, max_norm / (norm + 1e-6)) if max_norm else 1.0
        for name, (p, g) in parameters.items():
            t, m, v = self.state.get(name, (0, numpy.zeros(p.shape), numpy.zeros(p.shape)))
            t, g = t + 1, g.astype("f8") * clip
            m = self.betas[0] * m + (1 - self.betas[0]) * g
            v = self.betas[1] * v + (1 - self.betas[1]) * g * g
            p *= 1 - self.lr * self.weight_decay
            p -= self.lr * (m / (1 - self.betas[0] ** t)) / (numpy.sqrt(v / (1 - self.betas[1] ** t)) + self.eps)
            self.state[name] = (t, m, v)
        return norm


class ArrayTest(unittest.TestCase):
    def test_matches_reference(self):
        for dtype, bound in (("f4", 1e-5), ("f8", 1e-12)):
            for max_norm in (0, 0.7):
                rng = numpy.random.default_rng(0)
                shapes = {"a": (7, 13), "b": (), "c": (0, 3), "d": (70001,)}
                ours = {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}
                ours = {name: numpy.array(value) for name, value in ours.items()}
                theirs = {name: value.astype("f8") for name, value in ours.items()}
                adamw = AdamW(lr=1e-2, betas=(0.8, 0.95), weight_decay=0.1, threads=2)
                reference = Reference(1e-2, (0.8, 0.95), 1e-8, 0.1)
                for step in range(6):
                    # A parameter that is not in every step.
                    names = [name for name in shapes if name != "a" or step != 2]
                    gradients = {name: numpy.array(rng.standard_normal(shapes[name]).astype(dtype)) for name in names}
                    norm = adamw.step({name: (ours[name], gradients[name]) for name in names}, max_norm)
                    expected = reference.step({name: (theirs[name], gradients[name]) for name in names}, max_norm)
                    self.assertAlmostEqual(norm, expected, delta=1e-6 * expected)
                for name in shapes:
                    numpy.testing.assert_allclose(ours[name], theirs[name], rtol=bound, atol=bound)

    def test_restored_state_continues_bit_for_bit(self):
        for moments in ("float32", "bfloat16", "int8"):
            rng = numpy.random.default_rng(1)
            one = rng.standard_normal(5000).astype("f4")
            adamw = AdamW(moments=moments)
            adamw.step({"w": (one, rng.standard_normal(5000).astype("f4"))})
            other, two = AdamW(moments=moments), one.copy()
            other.load_state_dict(adamw.state_dict())
            gradient = rng.standard_normal(5000).astype("f4")
            adamw.step({"w": (one, gradient)})
            other.step({"w": (two, gradient)})
            self.assertEqual(one.tobytes(), two.tobytes())

    def test_tensors_of_torch(self):
        if not HAS_TORCH:
            self.skipTest("there is no torch")
        import torch

        parameter = torch.ones(3, 5)
        gradient = torch.full((3, 5), 0.5, dtype=torch.bfloat16)
        array = numpy.ones((3, 5), "f4")
        AdamW().step({"w": (parameter, gradient)})
        AdamW().step({"w": (array, numpy.full((3, 5), 0.5, "f4"))})
        self.assertEqual(parameter.numpy().tobytes(), array.tobytes())

    def test_bad_input(self):
        good = numpy.zeros((4, 4), "f4")
        read_only = numpy.zeros(4, "f4")
        read_only.flags.writeable = False
        adamw = AdamW()
        for parameter, gradient, text in (
            (good, numpy.zeros((2, 8), "f4"), r"the gradient of 'w' has shape \(2, 8\), the parameter \(4, 4\)"),
            (good.T[1:], good[1:], "not contiguous"),
            (numpy.zeros(4, "i4"), numpy.zeros(4, "i4"), "type i32"),
            (numpy.zeros(4, "c8"), numpy.zeros(4, "c8"), "type DLPack type 5"),
            (read_only, numpy.zeros(4, "f4"), "read-only|readonly"),
            ([1.0], good, "is a list"),
            (good, None, "is a NoneType"),
            (good, numpy.full((4, 4), numpy.nan, "f4"), "16 elements of the gradients"),
            (good, good, "overlap"),
        ):
            with self.assertRaisesRegex(InvalidArgument, text):
                adamw.step({"w": (parameter, gradient)}, max_norm=1)
        adamw.step({"w": (good, good.copy())})
        with self.assertRaisesRegex(InvalidArgument, "its moments are for 16 of f32"):
            adamw.step({"w": (numpy.zeros(3, "f4"), numpy.zeros(3, "f4"))})
        with self.assertRaisesRegex(InvalidArgument, "learning"):
            AdamW(lr=-1)
        if HAS_TORCH:
            import torch

            with self.assertRaisesRegex((InvalidArgument, ValueError, BufferError, NotImplementedError), "meta|[Dd]evice"):
                adamw.step({"m": (torch.zeros(2, device="meta"), torch.zeros(2))})


if __name__ == "__main__":
    unittest.main(verbosity=2)
