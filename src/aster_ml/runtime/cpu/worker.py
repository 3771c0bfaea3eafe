"""Generates the native half of the thread pool: LLVM IR that runs lists of kernel calls.

Receives addresses only. Python lays out lists in memory (`cpu/program`) and manages the threads
(`cpu/pool`); this module defines the common layout and the native code that walks it.

A list consists of groups of records; a record is a kernel call, whose range may be divided into
parts. Parts of a group run in any order on any thread; a group starts when the previous one is
done. Distribution of parts (work stealing):

- A thread claims a part by changing its claim word from the list's last serial number to the
  present one, so each part runs once a run, and nothing is reset between runs.
- Each thread owns a contiguous row of parts and runs it in order, for cache locality. A thread that
  has waited for a moment steals parts that others have not begun, from the end of the row of the
  thread before it. This balances the load, and no run waits for a sleeping or preempted thread: the
  calling thread alone would finish it.
- Each thread adds its parts to the group's count, which only grows; the group is done when the
  count reaches serial number times parts.

Under stress (the setting POOL_STRESS) threads produce rare schedules that the rules above allow:
random delays before and after each part, skipped records, random first parts.

Entering a list: the epoch is odd while a list is open. A worker increments the count of workers
inside, reads the epoch again and walks the list only if it has not changed. The caller closes the
list (epoch even) and waits until no worker is inside. All four accesses are sequentially
consistent, so either the worker sees the closed list or the caller sees the worker.

Sleeping: a worker announces that it will sleep, then checks whether a list is open or announced.
The caller announces a list, then wakes sleeping workers from Python, then opens the list. So no
worker misses a list, although the system may preempt the caller between Python and native code.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
from typing import Any, NamedTuple

from aster_ml.runtime.cpu import llvm_jit
from aster_ml.runtime.cpu.kept_object import load_kept
from aster_ml.runtime.cpu.places import PLACES_IR

# All offsets are in words of 8 bytes; words that several threads write are 64 bytes apart.
LINE = 8
# The pool's state.
EPOCH, INSIDE, CURRENT_LIST, THREAD_COUNT, STOP, YIELD, COMING, LUCK, PROGRESS = (
    0, 8, 16, 17, 18, 19, 20, 22, 24,
)  # fmt: skip
# A line for each worker from here on: asleep or about to sleep; the last epoch it has run. Further
# words of the state and of these lines belong to `cpu/places`.
PARKED, SEEN = 32, 33
MAX_THREADS = 256
STATE_WORDS = PARKED + LINE * MAX_THREADS
# A list.
GROUP_COUNT, GROUPS, RECORDS, COUNTS, SERIAL, LIST_WORDS = 0, 1, 2, 3, 4, 8
# A group: its records from `begin` up to `end`, and their total number of parts.
GROUP_BEGIN, GROUP_END, GROUP_PARTS, GROUP_WORDS = 0, 1, 2, 4
# A record. Part p's claim word is the first of line p at `claims`.
FUNCTION, ARGUMENTS, SIZE, PARTS, CLAIMS, RECORD_WORDS = 0, 1, 2, 3, 4, 8

# Pauses before a thread steals parts (fewer while the others are absent), and between two calls of
# the system's yield.
STEAL_AFTER, YIELD_MASK = 64, 127

PAUSE = {
    "x86_64": "llvm.x86.sse2.pause()",
    "aarch64": "llvm.aarch64.hint(i32 1)",
    "arm64": "llvm.aarch64.hint(i32 1)",
}


# Increment and multiplier of the random numbers of POOL_STRESS.
LUCK_STEP, LUCK_MIX = -7046029254386353131, -4658895280553007687
# Under stress one of RARE delays has up to LONG pauses, and so on; all are powers of two.
RARE, LONG, SOMETIMES, MIDDLE, OFTEN, SHORT = 32, 1 << 11, 4, 1 << 7, 2, 1 << 4

STRESS_IR = f"""
; A number that no thread can foresee.
define internal i64 @luck(ptr %state) {{
entry:
  %slot = getelementptr i64, ptr %state, i64 {LUCK}
  %old = atomicrmw add ptr %slot, i64 {LUCK_STEP} monotonic
  %high = lshr i64 %old, 30
  %mixed = xor i64 %old, %high
  %product = mul i64 %mixed, {LUCK_MIX}
  %result = lshr i64 %product, 20
  ret i64 %result
}}

; Waits, for no reason.
define internal void @dawdle(ptr %state) {{
entry:
  %luck = call i64 @luck(ptr %state)
  %length = lshr i64 %luck, 8
  %low.rare = and i64 %luck, {RARE - 1}
  %low.some = and i64 %luck, {SOMETIMES - 1}
  %low.often = and i64 %luck, {OFTEN - 1}
  %rare = icmp eq i64 %low.rare, 0
  %some = icmp eq i64 %low.some, 0
  %often = icmp eq i64 %low.often, 0
  %mask.often = select i1 %often, i64 {SHORT - 1}, i64 0
  %mask.some = select i1 %some, i64 {MIDDLE - 1}, i64 %mask.often
  %mask = select i1 %rare, i64 {LONG - 1}, i64 %mask.some
  %count = and i64 %length, %mask
  br label %head
head:
  %spins = phi i64 [ 0, %entry ], [ %after, %body ]
  %more = icmp slt i64 %spins, %count
  br i1 %more, label %body, label %done
body:
  call void @wait_step(ptr %state, i64 %spins)
  %after = add i64 %spins, 1
  br label %head
done:
  ret void
}}
"""


def worker_ir(machine: str, stress: bool = False) -> str:
    """The IR for a processor family; without a pause instruction a wait is an empty loop."""
    call = PAUSE.get(machine)
    declare = pause = ""
    if call is not None:
        kind = "i32" if "(i32" in call else ""
        declare = f"declare void @{call.partition('(')[0]}({kind})"
        pause = f"call void @{call}"
    dawdle = "call void @dawdle(ptr %state)" if stress else ""
    # A thread starts a record with its own parts, or under stress with any or none.
    begin = """
  %from = select i1 %others, i64 %before, i64 %first
  %step = select i1 %others, i64 -1, i64 1
  %number = select i1 %others, i64 %parts, i64 %own.count"""
    if stress:
        begin = """
  %luck = call i64 @luck(ptr %state)
  %coin = and i64 %luck, 1
  %heads = icmp eq i64 %coin, 0
  %come = or i1 %others, %heads
  %rest = lshr i64 %luck, 1
  %from = urem i64 %rest, %parts
  %step = sub i64 0, 1
  %number = select i1 %come, i64 %parts, i64 0"""
    return f"""
{declare}

; One step of waiting; every so often the system may run something else here.
define internal void @wait_step(ptr %state, i64 %spins) {{
entry:
  {pause}
  %low = and i64 %spins, {YIELD_MASK}
  %due = icmp eq i64 %low, {YIELD_MASK}
  br i1 %due, label %ask, label %done
ask:
  %slot = getelementptr i64, ptr %state, i64 {YIELD}
  %yield = load ptr, ptr %slot
  %none = icmp eq ptr %yield, null
  br i1 %none, label %done, label %call
call:
  %ignored = call i32 %yield()
  br label %done
done:
  ret void
}}

{PLACES_IR}
{STRESS_IR if stress else ""}
define internal i1 @claim(ptr %record, i64 %part, i64 %serial) {{
entry:
  %slot = getelementptr i64, ptr %record, i64 {CLAIMS}
  %claims = load ptr, ptr %slot
  %line = mul i64 %part, {LINE}
  %word = getelementptr i64, ptr %claims, i64 %line
  %seen = load atomic i64, ptr %word monotonic, align 8
  %taken = icmp eq i64 %seen, %serial
  br i1 %taken, label %lost, label %try
try:
  %last = sub i64 %serial, 1
  %pair = cmpxchg ptr %word, i64 %last, i64 %serial acq_rel monotonic
  %won = extractvalue {{ i64, i1 }} %pair, 1
  ret i1 %won
lost:
  ret i1 false
}}

define internal void @run_part(ptr %state, ptr %record, i64 %part) {{
entry:
  {dawdle}
  %p1 = getelementptr i64, ptr %record, i64 {ARGUMENTS}
  %p2 = getelementptr i64, ptr %record, i64 {SIZE}
  %p3 = getelementptr i64, ptr %record, i64 {PARTS}
  %function = load ptr, ptr %record
  %arguments = load ptr, ptr %p1
  %size = load i64, ptr %p2
  %parts = load i64, ptr %p3
  %next = add i64 %part, 1
  %lo.n = mul i64 %size, %part
  %hi.n = mul i64 %size, %next
  %lo = sdiv i64 %lo.n, %parts
  %hi = sdiv i64 %hi.n, %parts
  %some = icmp slt i64 %lo, %hi
  br i1 %some, label %call, label %done
call:
  call void %function(ptr %arguments, i64 %lo, i64 %hi)
  {dawdle}
  br label %done
done:
  ret void
}}

; Claims and runs `count` parts of a record from `first` on, upwards or downwards, where the last
; follows the first again; returns how many nobody else had claimed.
define internal i64 @run_parts(ptr %state, ptr %record, i64 %first, i64 %step, i64 %count,
                               i64 %serial) {{
entry:
  %slot = getelementptr i64, ptr %record, i64 {PARTS}
  %parts = load i64, ptr %slot
  br label %head
head:
  %part = phi i64 [ %first, %entry ], [ %after, %next ]
  %left = phi i64 [ %count, %entry ], [ %left.after, %next ]
  %ran = phi i64 [ 0, %entry ], [ %ran.after, %next ]
  %more = icmp sgt i64 %left, 0
  br i1 %more, label %body, label %done
body:
  %below = icmp slt i64 %part, 0
  %around = add i64 %part, %parts
  %here = select i1 %below, i64 %around, i64 %part
  %won = call i1 @claim(ptr %record, i64 %here, i64 %serial)
  br i1 %won, label %run, label %next
run:
  call void @run_part(ptr %state, ptr %record, i64 %here)
  %one.more = add i64 %ran, 1
  br label %next
next:
  %ran.after = phi i64 [ %ran, %body ], [ %one.more, %run ]
  %after = add i64 %here, %step
  %left.after = sub i64 %left, 1
  br label %head
done:
  ret i64 %ran
}}

; Walks records begin..end: the parts that belong to a thread, or with `others` what is unclaimed.
; Undivided records are the calling thread's, which is number 0.
define internal i64 @run_group(ptr %state, ptr %records, i64 %begin, i64 %end, i64 %thread,
                               i64 %threads, i64 %serial, i1 %others) {{
entry:
  %caller = icmp eq i64 %thread, 0
  %own = xor i1 %others, true
  %undivided = and i1 %caller, %own
  br label %head
head:
  %index = phi i64 [ %begin, %entry ], [ %after, %next ]
  %ran = phi i64 [ 0, %entry ], [ %ran.after, %next ]
  %more = icmp slt i64 %index, %end
  br i1 %more, label %body, label %done
body:
  %offset = mul i64 %index, {RECORD_WORDS}
  %record = getelementptr i64, ptr %records, i64 %offset
  %slot = getelementptr i64, ptr %record, i64 {PARTS}
  %parts = load i64, ptr %slot
  %whole = icmp eq i64 %parts, 1
  br i1 %whole, label %single, label %split
single:
  br i1 %undivided, label %call, label %next
call:
  call void @run_part(ptr %state, ptr %record, i64 0)
  br label %next
split:
  %thread.after = add i64 %thread, 1
  %first.n = mul i64 %parts, %thread
  %last.n = mul i64 %parts, %thread.after
  %first = sdiv i64 %first.n, %threads
  %last = sdiv i64 %last.n, %threads
  %own.count = sub i64 %last, %first
  ; Of what others have, first what the one before would come to last.
  %before = sub i64 %first, 1
  {begin.strip()}
  %count = call i64 @run_parts(ptr %state, ptr %record, i64 %from, i64 %step, i64 %number,
                               i64 %serial)
  br label %next
next:
  %here = phi i64 [ 0, %single ], [ 1, %call ], [ %count, %split ]
  %ran.after = add i64 %ran, %here
  %after = add i64 %index, 1
  br label %head
done:
  ret i64 %ran
}}

define internal void @add_count(ptr %count, i64 %ran) {{
entry:
  %none = icmp eq i64 %ran, 0
  br i1 %none, label %done, label %add
add:
  %old = atomicrmw add ptr %count, i64 %ran acq_rel
  br label %done
done:
  ret void
}}

; One thread's way through the list. Workers that come late start where the caller is.
define internal void @walk(ptr %state, ptr %list, i64 %thread) {{
entry:
  %p.threads = getelementptr i64, ptr %state, i64 {THREAD_COUNT}
  %p.progress = getelementptr i64, ptr %state, i64 {PROGRESS}
  %p.groups = getelementptr i64, ptr %list, i64 {GROUPS}
  %p.records = getelementptr i64, ptr %list, i64 {RECORDS}
  %p.counts = getelementptr i64, ptr %list, i64 {COUNTS}
  %p.serial = getelementptr i64, ptr %list, i64 {SERIAL}
  %threads = load i64, ptr %p.threads
  %group.count = load i64, ptr %list
  %groups = load ptr, ptr %p.groups
  %records = load ptr, ptr %p.records
  %counts = load ptr, ptr %p.counts
  %serial = load i64, ptr %p.serial
  %caller = icmp eq i64 %thread, 0
  %start = load atomic i64, ptr %p.progress acquire, align 8
  br label %head
head:
  %g = phi i64 [ %start, %entry ], [ %g.after, %next ]
  %patience = phi i64 [ {STEAL_AFTER}, %entry ], [ %keep, %next ]
  %more = icmp slt i64 %g, %group.count
  br i1 %more, label %body, label %done
body:
  br i1 %caller, label %tell, label %run
tell:
  store atomic i64 %g, ptr %p.progress release, align 8
  br label %run
run:
  %g.offset = mul i64 %g, {GROUP_WORDS}
  %group = getelementptr i64, ptr %groups, i64 %g.offset
  %p.end = getelementptr i64, ptr %group, i64 {GROUP_END}
  %p.parts = getelementptr i64, ptr %group, i64 {GROUP_PARTS}
  %begin = load i64, ptr %group
  %end = load i64, ptr %p.end
  %parts = load i64, ptr %p.parts
  %c.offset = mul i64 %g, {LINE}
  %count = getelementptr i64, ptr %counts, i64 %c.offset
  %wanted = mul i64 %parts, %serial
  %ran = call i64 @run_group(ptr %state, ptr %records, i64 %begin, i64 %end, i64 %thread,
                             i64 %threads, i64 %serial, i1 false)
  call void @add_count(ptr %count, i64 %ran)
  br label %wait
wait:
  %spins = phi i64 [ 0, %run ], [ %spins.after, %again ]
  %keep = phi i64 [ {STEAL_AFTER}, %run ], [ %keep.after, %again ]
  %reached = load atomic i64, ptr %count acquire, align 8
  %complete = icmp sge i64 %reached, %wanted
  br i1 %complete, label %next, label %still
still:
  %spins.after = add i64 %spins, 1
  %due = icmp eq i64 %spins.after, %patience
  br i1 %due, label %steal, label %again
steal:
  %more.ran = call i64 @run_group(ptr %state, ptr %records, i64 %begin, i64 %end, i64 %thread,
                                  i64 %threads, i64 %serial, i1 true)
  call void @add_count(ptr %count, i64 %more.ran)
  ; Who did not come to this group is likely not to come to the next.
  %vain = icmp eq i64 %more.ran, 0
  %quarter = lshr i64 %patience, 2
  %none = icmp eq i64 %quarter, 0
  %less = select i1 %none, i64 1, i64 %quarter
  %keep.stolen = select i1 %vain, i64 {STEAL_AFTER}, i64 %less
  br label %again
again:
  %keep.after = phi i64 [ %keep, %still ], [ %keep.stolen, %steal ]
  call void @wait_step(ptr %state, i64 %spins)
  br label %wait
next:
  %g.after = add i64 %g, 1
  br label %head
done:
  ret void
}}

; The caller's side: publishes a list, walks it, and comes back when nobody is inside any more.
define void @aster_run_list(ptr %state, ptr %list, i64 %threads) {{
entry:
  %p.list = getelementptr i64, ptr %state, i64 {CURRENT_LIST}
  %p.threads = getelementptr i64, ptr %state, i64 {THREAD_COUNT}
  %p.progress = getelementptr i64, ptr %state, i64 {PROGRESS}
  %p.inside = getelementptr i64, ptr %state, i64 {INSIDE}
  %p.serial = getelementptr i64, ptr %list, i64 {SERIAL}
  %serial = load i64, ptr %p.serial
  %serial.now = add i64 %serial, 1
  store i64 %serial.now, ptr %p.serial
  store ptr %list, ptr %p.list
  store i64 %threads, ptr %p.threads
  %here = call i64 @at_home(ptr %state)
  store atomic i64 0, ptr %p.progress release, align 8
  %opened = atomicrmw add ptr %state, i64 1 seq_cst
  %p.coming = getelementptr i64, ptr %state, i64 {COMING}
  store atomic i64 0, ptr %p.coming release, align 8
  call void @walk(ptr %state, ptr %list, i64 0)
  %closed = atomicrmw add ptr %state, i64 1 seq_cst
  br label %wait
wait:
  %spins = phi i64 [ 0, %entry ], [ %spins.after, %again ]
  %inside = load atomic i64, ptr %p.inside seq_cst, align 8
  %empty = icmp eq i64 %inside, 0
  br i1 %empty, label %done, label %again
again:
  %spins.after = add i64 %spins, 1
  call void @wait_step(ptr %state, i64 %spins)
  br label %wait
done:
  ret void
}}

; Says that a list is coming; returns how many of the workers 1 to `helpers` have to be woken.
define i64 @aster_announce(ptr %state, i64 %helpers) {{
entry:
  %p.coming = getelementptr i64, ptr %state, i64 {COMING}
  %old = atomicrmw xchg ptr %p.coming, i64 1 seq_cst
  ; A worker that wakes now would keep away from where the caller was before.
  %here = call i64 @at_home(ptr %state)
  br label %head
head:
  %thread = phi i64 [ 1, %entry ], [ %after, %next ]
  %asleep = phi i64 [ 0, %entry ], [ %sum, %next ]
  %more = icmp sle i64 %thread, %helpers
  br i1 %more, label %body, label %done
body:
  %line = mul i64 %thread, {LINE}
  %offset = add i64 %line, {PARKED}
  %word = getelementptr i64, ptr %state, i64 %offset
  %parked = load atomic i64, ptr %word seq_cst, align 8
  %sum = add i64 %asleep, %parked
  %after = add i64 %thread, 1
  %sleeps = icmp ne i64 %parked, 0
  br i1 %sleeps, label %look, label %next
look:
  %p.worker = getelementptr i64, ptr %state, i64 %line
  call void @send_away(ptr %state, ptr %p.worker, i64 %here)
  br label %next
next:
  br label %head
done:
  ret i64 %asleep
}}

; A worker's side: walks lists as they come. Returns 1 when told to stop, 0 when none came for
; `limit` pauses.
define i64 @aster_work(ptr %state, i64 %thread, i64 %limit) {{
entry:
  %offset = mul i64 %thread, {LINE}
  %line = getelementptr i64, ptr %state, i64 %offset
  %p.parked = getelementptr i64, ptr %line, i64 {PARKED}
  %p.seen = getelementptr i64, ptr %line, i64 {SEEN}
  %p.inside = getelementptr i64, ptr %state, i64 {INSIDE}
  %p.list = getelementptr i64, ptr %state, i64 {CURRENT_LIST}
  %p.threads = getelementptr i64, ptr %state, i64 {THREAD_COUNT}
  %p.stop = getelementptr i64, ptr %state, i64 {STOP}
  store atomic i64 0, ptr %p.parked seq_cst, align 8
  call void @come_back(ptr %state, ptr %line)
  br label %head
head:
  %spins = phi i64 [ 0, %entry ], [ 0, %leave ], [ %spins.next, %wait ]
  %last = phi i64 [ -1, %entry ], [ %epoch, %leave ], [ %epoch, %wait ]
  %epoch = load atomic i64, ptr %state acquire, align 8
  %odd = and i64 %epoch, 1
  %open = icmp ne i64 %odd, 0
  %seen = load i64, ptr %p.seen
  %unseen = icmp ne i64 %epoch, %seen
  %fresh = and i1 %open, %unseen
  br i1 %fresh, label %enter, label %quiet
enter:
  %in = atomicrmw add ptr %p.inside, i64 1 seq_cst
  %epoch.now = load atomic i64, ptr %state seq_cst, align 8
  %same = icmp eq i64 %epoch.now, %epoch
  br i1 %same, label %check, label %leave
check:
  %threads = load i64, ptr %p.threads
  %wanted = icmp slt i64 %thread, %threads
  br i1 %wanted, label %go, label %leave
go:
  call void @step_aside(ptr %state)
  %list = load ptr, ptr %p.list
  call void @walk(ptr %state, ptr %list, i64 %thread)
  br label %leave
leave:
  store i64 %epoch, ptr %p.seen
  %out = atomicrmw sub ptr %p.inside, i64 1 seq_cst
  br label %head
quiet:
  %stop = load atomic i64, ptr %p.stop acquire, align 8
  %stopped = icmp ne i64 %stop, 0
  br i1 %stopped, label %end, label %count
count:
  %moved = icmp ne i64 %epoch, %last
  %spins.after = add i64 %spins, 1
  %spins.next = select i1 %moved, i64 0, i64 %spins.after
  %tired = icmp sgt i64 %spins.next, %limit
  br i1 %tired, label %end, label %idle
idle:
  ; Before others may run here: what waits may be the caller.
  %low = and i64 %spins.next, {YIELD_MASK}
  %due = icmp eq i64 %low, {YIELD_MASK}
  br i1 %due, label %aside, label %wait
aside:
  call void @step_aside(ptr %state)
  br label %wait
wait:
  call void @wait_step(ptr %state, i64 %spins.next)
  br label %head
end:
  %result = phi i64 [ 1, %quiet ], [ 0, %count ]
  ret i64 %result
}}

; Says that a worker is about to sleep. Returns 0 when a list is open or coming, so it must not.
define i64 @aster_park(ptr %state, i64 %thread) {{
entry:
  %offset = mul i64 %thread, {LINE}
  %line = getelementptr i64, ptr %state, i64 %offset
  %p.parked = getelementptr i64, ptr %line, i64 {PARKED}
  %p.seen = getelementptr i64, ptr %line, i64 {SEEN}
  %p.stop = getelementptr i64, ptr %state, i64 {STOP}
  %p.coming = getelementptr i64, ptr %state, i64 {COMING}
  %old = atomicrmw xchg ptr %p.parked, i64 1 seq_cst
  %coming = load atomic i64, ptr %p.coming seq_cst, align 8
  %epoch = load atomic i64, ptr %state seq_cst, align 8
  %stop = load atomic i64, ptr %p.stop seq_cst, align 8
  %odd = and i64 %epoch, 1
  %open = icmp ne i64 %odd, 0
  %seen = load i64, ptr %p.seen
  %unseen = icmp ne i64 %epoch, %seen
  %fresh = and i1 %open, %unseen
  %stopped = icmp ne i64 %stop, 0
  %announced = icmp ne i64 %coming, 0
  %busy = or i1 %fresh, %announced
  %awake = or i1 %busy, %stopped
  %sleep = xor i1 %awake, true
  %result = zext i1 %sleep to i64
  ret i64 %result
}}

; Runs undivided records one after another on the calling thread.
define void @aster_run_serial(ptr %records, i64 %count) {{
entry:
  br label %head
head:
  %index = phi i64 [ 0, %entry ], [ %after, %body ]
  %more = icmp slt i64 %index, %count
  br i1 %more, label %body, label %done
body:
  %offset = mul i64 %index, {RECORD_WORDS}
  %record = getelementptr i64, ptr %records, i64 %offset
  call void @run_part(ptr null, ptr %record, i64 0)
  %after = add i64 %index, 1
  br label %head
done:
  ret void
}}

; Pauses that many times, to learn how long a pause takes.
define void @aster_pause(i64 %count) {{
entry:
  br label %head
head:
  %index = phi i64 [ 0, %entry ], [ %after, %body ]
  %more = icmp slt i64 %index, %count
  br i1 %more, label %body, label %done
body:
  {pause}
  %after = add i64 %index, 1
  br label %head
done:
  ret void
}}
"""


class Native(NamedTuple):
    """The native functions, as ctypes callables that release the GIL."""

    run_list: Any
    announce: Any
    work: Any
    park: Any
    run_serial: Any
    pause: Any
    loaded: llvm_jit.LoadedObject


@functools.cache
def native(stress: bool = False) -> Native:
    """The native functions of this process; compiled once a machine, then read from the cache."""
    source = worker_ir(llvm_jit.host().machine, stress)
    digest = hashlib.blake2b(source.encode(), digest_size=16).hexdigest()
    key = f"cpu_worker {llvm_jit.host().key} {llvm_jit.QUICK_LEVEL} {digest}"
    names = [f"aster_{name}" for name in Native._fields if name != "loaded"]
    loaded = load_kept(key, source, *names)
    word = ctypes.c_int64

    def function(name: str, result: Any, *arguments: Any) -> Any:
        return ctypes.CFUNCTYPE(result, *arguments)(loaded.address(name))

    return Native(
        function("aster_run_list", None, word, word, word),
        function("aster_announce", word, word, word),
        function("aster_work", word, word, word, word),
        function("aster_park", word, word, word),
        function("aster_run_serial", None, word, word),
        function("aster_pause", None, word),
        loaded,
    )
