"""From a tensor to what runs: schedule, kernels, programs, memory."""

from tinygrad import Device, Tensor, dtypes
from tinygrad.device import Buffer
from tinygrad.engine.memory import memory_planner
from tinygrad.engine.realize import CompiledRunner, ExecItem, get_program, run_schedule
from tinygrad.helpers import DEBUG, getenv
from tinygrad.uop.ops import Ops

a, b = Tensor([1.0, 2.0, 3.0]).realize(), Tensor([4.0, 5.0, 6.0]).realize()
out = (a * b).sum() + 1
items = memory_planner(out.schedule())
print(len(items) >= 1, all(isinstance(i, ExecItem) for i in items), items[-1].ast.op is Ops.SINK)
for item in items:
    item.lower().run()
print(out.item())

out = a + b
item = out.schedule()[-1]
program = get_program(item.ast, Device[Device.DEFAULT].renderer)
print(
    program.device,
    sorted(program.globals),
    program.outs,
    program.estimates.ops > 0,
    len(program.src) > 0,
)
print(
    any(u.op is Ops.DEFINE_GLOBAL for u in program.uops),
    any(u.op is Ops.STORE for u in program.uops),
)
runner = CompiledRunner(program)
bufs = [Buffer(Device.DEFAULT, 3, dtypes.float32).allocate() for _ in range(3)]
bufs[1].copyin(memoryview(bytearray(a.data().tobytes())))
bufs[2].copyin(memoryview(bytearray(b.data().tobytes())))
runner.exec(bufs)
print(bufs[0].as_buffer().cast("f").tolist())
out = (a - b).contiguous()
run_schedule(out.schedule())
print(out.tolist(), DEBUG.value, getenv("NO_SUCH_THING", "none"))
