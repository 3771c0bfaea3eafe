"""One policy for a Target: which it is, that both answer the same, and what the other costs."""

from __future__ import annotations

import inspect

import pytest

from aster_ml.codegen.opts import parse_opts
from aster_ml.codegen.policy.cpu import policy as cpu
from aster_ml.codegen.policy.gpu import policy as gpu
from aster_ml.codegen.policy.protocol import Policy, policy_of
from aster_ml.target import INTERPRETER, Target
from aster_ml.target.cuda import cuda_target
from tests.core.test_import_budget import loaded
from tests.fuzz.random_kernels import AVX2, GROUPS, NEON

ANSWERS = [name for name in vars(Policy) if not name.startswith("_")]


@pytest.mark.parametrize("target", [AVX2, NEON, Target("PYTHON", "python", kind=INTERPRETER)])
def test_targets_without_work_groups_have_the_policy_of_cpus(target: Target) -> None:
    assert policy_of(target) is cpu


@pytest.mark.parametrize("target", [GROUPS, cuda_target("sm_80")], ids=["groups", "sm_80"])
def test_targets_with_work_groups_have_a_policy_of_their_own(target: Target) -> None:
    policy, opt = policy_of(target), parse_opts("LOCAL(r0,8)")[0]
    assert [o.arg for o in policy.sizes(opt, target)] == [4, 16]
    assert not list(cpu.sizes(opt, target))


@pytest.mark.parametrize("name", ANSWERS)
def test_both_policies_take_what_the_protocol_says(name: str) -> None:
    wanted = [*inspect.signature(getattr(Policy, name)).parameters][1:]
    for policy in (cpu, gpu):
        assert [*inspect.signature(getattr(policy, name)).parameters] == wanted


def test_a_kernel_of_a_cpu_is_compiled_without_what_work_groups_need() -> None:
    program = "from aster_ml import Tensor; a = Tensor.rand(8, 8, device='CPU'); (a @ a).numpy()"
    found = loaded(f"import os; os.environ['CACHE'] = '0'\n{program}")
    assert "codegen.policy.cpu.policy" in found
    assert not [m for m in found if m.startswith(("codegen.work_groups.", "codegen.policy.gpu."))]
