"""The canonical style."""

from __future__ import annotations

import pytest

from gconvdsl.errors import GconvSyntaxError
from gconvdsl.grammar import format_text, loads

UGLY = """\


# head
problem a{C=4 K   =4 input= 9x9 filter=3x3}   # first
problem longer {C=4   K=4 input=9x9 filter=3x3 pad=0:1x2:2}



kernel k for forward,bwd_data{tile={cdna:64x64x64 rdna:32x32x32} pipeline=compv4->basic_v1}
kernel fast(bias:per_k ,r:like_y){
conv{stride=1 pad=1}# params
      # a comment of its own
        pipeline = compv4->compv3   tile=64x16x64
epilogue=relu( acc+bias*-2 )-( r - 1.5e-3 )/max(acc,- r)
}
epilogue act( acc,bias:per_k )=where(acc>0,acc,-acc)+bias
sweep all{tile in{64x64x64,32x32x32}pipeline in* where not(tile.n<=4*K/G)and -K<3
}
let n=-2
run fast on a,longer for forward
bench all,fast on a->"out # not a comment.parquet"
"""
PRETTY = """\
# head
problem a      { C = 4  K = 4  input = 9x9  filter = 3x3 }  # first
problem longer { C = 4  K = 4  input = 9x9  filter = 3x3  pad = 0:1x2:2 }

kernel k for forward, bwd_data { tile = { cdna: 64x64x64  rdna: 32x32x32 }  pipeline = compv4 -> basic_v1 }
kernel fast (bias: per_k, r: like_y) {
  conv { stride = 1  pad = 1 }  # params
  # a comment of its own
  pipeline = compv4 -> compv3  tile = 64x16x64
  epilogue = relu(acc + bias * -2) - (r - 1.5e-3) / max(acc, -r)
}
epilogue act(acc, bias: per_k) = where(acc > 0, acc, -acc) + bias
sweep all { tile in { 64x64x64, 32x32x32 }  pipeline in *  where not (tile.n <= 4 * K / G) and -K < 3
}
let n = -2
run fast on a, longer for forward
bench all, fast on a -> "out # not a comment.parquet"
"""


def test_style() -> None:
    assert format_text(UGLY) == PRETTY
    assert format_text(PRETTY) == PRETTY
    assert loads(UGLY) == loads(PRETTY)


@pytest.mark.parametrize(("text", "formatted"), [
    ("", ""), ("\n\n", ""), ("# c", "# c\n"), ("let a=1\r\nlet b=2\r\n", "let a = 1\nlet b = 2\n"),
    ("problem a {\nC=1\n\n\n\nK=1 input=3x3\n   filter=1x1\n}",
     "problem a {\n  C = 1\n\n  K = 1  input = 3x3\n  filter = 1x1\n}\n"),
    ("kernel k{epilogue=acc*where(acc>1,2,3)+where(acc<1,2,3)}",
     "kernel k { epilogue = acc * where(acc > 1, 2, 3) + where(acc < 1, 2, 3) }\n"),
    ("sweep s{tile in*where(N)>1 where(K)<2}", "sweep s { tile in *  where (N) > 1  where (K) < 2 }\n"),
    ("let a=(1\n+2)", "let a = (1\n  + 2)\n"),
    ("tile tile{block=8x8x8}\nkernel run{tile=tile pipeline=mem}",
     "tile tile { block = 8x8x8 }\nkernel run { tile = tile  pipeline = mem }\n"),
])
def test_small_cases(text: str, formatted: str) -> None:
    assert format_text(text) == formatted
    assert format_text(formatted) == formatted


def test_faulty_text_is_refused_but_unknown_names_are_not() -> None:
    with pytest.raises(GconvSyntaxError):
        format_text("problem a { C = }")
    assert format_text("run  k on p") == "run k on p\n"
