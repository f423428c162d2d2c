"""Pickles give their arrays and run nothing."""

import builtins
import os
import pickle
import struct
import warnings
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from momentex.data import pickles
from momentex.data.official import CIFAR10
from momentex.errors import DataError
from tests.sets import python2

LABELS = torch.tensor([3, 0, 9])
IMAGES = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
OFFICIAL = python2(CIFAR10, IMAGES, LABELS)


class Call:
    """Pickles as the call of `function`."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


# --- what they hold --------------------------------------------------------------------------------------------------


def test_a_batch_as_python_2_pickled_it_is_what_the_plain_unpickler_finds():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # numpy.core has moved
        plain = pickle.loads(OFFICIAL, encoding="bytes")
    ours = pickles.loads(OFFICIAL, "batch")
    assert set(ours) == set(plain) == {b"data", b"labels", b"batch_label"}
    assert ours[b"labels"] == plain[b"labels"] == LABELS.tolist()
    assert ours[b"data"].shape == plain[b"data"].shape == (3, 3072)
    assert ours[b"data"].raw == plain[b"data"].tobytes() == bytes(IMAGES.flatten().tolist())


@pytest.mark.parametrize("shape", [(5,), (2, 3), (4, 1, 2)])
@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_an_array_as_this_numpy_pickles_it_keeps_shape_and_bytes(shape, protocol):
    array = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    stored = pickles.loads(pickle.dumps({"data": array}, protocol=protocol), "batch")["data"]
    assert (stored.shape, stored.raw) == (array.shape, array.tobytes())


trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
)


@given(trees, st.integers(3, pickle.HIGHEST_PROTOCOL))
def test_values_without_names_are_what_they_were(tree, protocol):
    assert pickles.loads(pickle.dumps(tree, protocol=protocol), "batch") == tree


# --- what they do not do ---------------------------------------------------------------------------------------------


def running(mark):
    """Pickles of which each, in the plain unpickler, makes the file `mark`."""
    shell, code = f"touch {mark}", f"open({str(mark)!r}, 'w').close()"
    system, evil = Call(os.system, shell), Call(builtins.eval, code)
    getting = Call(builtins.getattr, Call(builtins.__import__, "os"), "system")
    return {
        **{f"os.system, protocol {n}": pickle.dumps(system, protocol=n) for n in range(pickle.HIGHEST_PROTOCOL + 1)},
        "eval": pickle.dumps(evil),
        "exec": pickle.dumps(Call(builtins.exec, code)),
        "import, then getattr": pickle.dumps(Call(builtins.list, Call(builtins.map, getting, [shell]))),
        "builtins of Python 2": f"c__builtin__\neval\n(V{code}\ntR.".encode(),
        "a path of names in numpy": b"\x80\x04\x8c\x05numpy\x8c\x15ma.core.builtins.eval\x93(V%b\ntR." % code.encode(),
        "numpy's memmap": pickle.dumps(Call(np.memmap, str(mark), "uint8", "w+", 0, (1,))),
        "nested in a batch": pickle.dumps({"data": np.zeros(3, np.uint8), "labels": [0, [system]]}, protocol=2),
        "as a key": pickle.dumps({(1, evil): 0}),
        "before a whole batch": pickle.dumps(evil)[:-1] + b"0" + OFFICIAL,
        "in the state of an array": OFFICIAL.replace(b"NNNJ", b"NN" + pickle.dumps(evil, protocol=2)[2:-1] + b"J"),
        "an instance": f"(V{shell}\nios\nsystem\n.".encode(),
        "an object": f"(cos\nsystem\nV{shell}\no.".encode(),
    }


@pytest.mark.parametrize("name", running("/nowhere"))
def test_no_code_runs(tmp_path, name):
    mark = tmp_path / "mark"
    with pytest.raises(DataError, match=r"^batch is refused: it names \w+\.[\w.]+, which no pickle of CIFAR needs"):
        pickles.loads(running(mark)[name], "batch")
    assert not mark.exists()


@pytest.mark.parametrize("name", running("/nowhere"))
def test_the_plain_unpickler_would_have_run_it(tmp_path, name):
    mark = tmp_path / "mark"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with suppress(TypeError, AttributeError, ValueError):  # of what follows
            pickle.loads(running(mark)[name], encoding="bytes")
    assert mark.exists()


RECONSTRUCT = b"cnumpy.core.multiarray\n_reconstruct\n"
DTYPE = b"cnumpy\ndtype\n"
ARRAY = RECONSTRUCT + b"(tR"


def state(shape=b"K\x02\x85", dtype=DTYPE + b"(U\x02u1tR", fortran=b"\x89", raw=b"U\x02ab"):
    return ARRAY + b"(K\x01" + shape + dtype + fortran + raw + b"tb."


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"cnumpy\nndarray\n(K\x05tR.", "it calls numpy.ndarray"),
        (DTYPE + b"(U\x01OtR.", "has the dtype b'O'; only 'u1', bytes, is known"),
        (DTYPE + b"(]tR.", r"has the dtype \[\]"),
        (DTYPE + b"(tR.", "has the dtype None"),
        (b"c_codecs\nencode\n(Vabc\nVrot13\ntR.", "encodes something else than text in latin1"),
        (b"c_codecs\nencode\n(VabcVlatin1\ntR.", "encodes something else"),
        (b"c_codecs\nencode\n(K\x01Vlatin1\ntR.", "encodes something else"),
        (RECONSTRUCT + b"}U\x0c__defaults__K\x01sb.", "it tries to change a function"),
        (RECONSTRUCT + b"N}U\x08__name__U\x01xs\x86b.", "it tries to change a function"),
        (state(shape=b"K\x03\x85"), "an array in it is not one of bytes with as many as its shape says"),
        (state(shape=b"J\xff\xff\xff\xffJ\xfe\xff\xff\xff\x86"), "an array in it is not one of bytes"),
        (state(shape=b"K\x02K\x01\x86", fortran=b"\x88"), "an array in it is not one of bytes"),
        (state(dtype=b"U\x02u1"), "an array in it is not one of bytes"),
        (state(raw=b"]"), "an array in it is not one of bytes"),
        (ARRAY + b"}b.", "an array in it is not one of bytes"),
    ],
)
def test_an_allowed_name_does_only_what_cifar_needs(raw, text):
    assert pickles.loads(state(), "batch").raw == b"ab"
    with pytest.raises(DataError, match=text):
        pickles.loads(raw, "batch")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b".",
        b"not a pickle",
        b"\x80\x63.",  # a protocol that does not exist
        b"Pname\n.",  # a persistent id
        b"\x82\x01.",  # an extension
        b"cnumpy\nndarray\n)\x81.",  # an instance of what is no class here
        b"]}U\x01aK\x01sb.",  # the state of a list
        b"h\x05.",  # a memo that is not there
        b"(K\x01K\x02d",
        b"\x80\x04\x8d" + struct.pack("<Q", 1 << 62) + b"a.",  # a text longer than all memory
        b"(" * 5 + b"l" * 9,
        b"V\\uzzzz\n.",
    ],
)
def test_what_is_no_pickle_is_an_error_of_ours(raw):
    with pytest.raises(
        DataError, match=r"(?s)^data_batch_1 is no whole pickle \(\w+: .*\)\. Take the official file\.$"
    ):
        pickles.loads(raw, "data_batch_1")


def test_no_beginning_of_a_pickle_is_a_pickle():
    for end in [*range(200), *range(len(OFFICIAL) - 80, len(OFFICIAL))]:
        with pytest.raises(DataError, match="no whole pickle"):
            pickles.loads(OFFICIAL[:end], "batch")
