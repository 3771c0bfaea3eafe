"""Keeps worker threads off the processor of the calling thread.

Part of the native code of `cpu/worker`, on the same state. It calls the system's affinity
functions, whose addresses `cpu/pool` stores in the state, and does nothing where there are none.

The system may wake a worker on the caller's processor, where both share its time although others
are idle. So the caller excludes its own processor from the affinity of a worker that it wakes; the
worker restores its affinity once it runs elsewhere. A worker that finds itself on the caller's
processor while it looks for work migrates in the same way.
"""

from __future__ import annotations

# Words of the state: the caller's processor, NOWHERE before it is known; the system's functions
# that read a thread's processor, read its affinity, and set it; 0 where there are none.
HOME, GET_PROCESSOR, GET_ALLOWED, SET_ALLOWED = 21, 25, 26, 27
NOWHERE = -1
# Words of a worker's line, counted from the start of the state as for the first worker: its thread
# id, and one more than the processor that the caller excludes.
IDENTITY, AWAY_FROM = 34, 35
# The names of these functions, in the order of their words.
SYSTEM_FUNCTIONS = "sched_getcpu", "sched_getaffinity", "sched_setaffinity"
# Bytes of a set of processors, a bit each, as the system takes it.
ALLOWED_NBYTES = 128

PLACES_IR = f"""
; The processor that this thread is on, -1 where the system does not tell.
define internal i64 @processor(ptr %state) {{
entry:
  %slot = getelementptr i64, ptr %state, i64 {GET_PROCESSOR}
  %get = load ptr, ptr %slot
  %none = icmp eq ptr %get, null
  br i1 %none, label %unknown, label %call
call:
  %number = call i32 %get()
  %result = sext i32 %number to i64
  ret i64 %result
unknown:
  ret i64 -1
}}

; The same for the caller, whose processor the workers keep away from.
define internal i64 @at_home(ptr %state) {{
entry:
  %here = call i64 @processor(ptr %state)
  %p.home = getelementptr i64, ptr %state, i64 {HOME}
  store atomic i64 %here, ptr %p.home monotonic, align 8
  ret i64 %here
}}

; Lets a thread, 0 for this one, run on a processor or keeps it away from there; whether that
; changed anything.
define internal i1 @allow(ptr %state, i64 %thread, i64 %processor, i1 %on) {{
entry:
  %allowed = alloca i8, i64 {ALLOWED_NBYTES}, align 8
  %p.get = getelementptr i64, ptr %state, i64 {GET_ALLOWED}
  %p.set = getelementptr i64, ptr %state, i64 {SET_ALLOWED}
  %get = load ptr, ptr %p.get
  %set = load ptr, ptr %p.set
  %id = trunc i64 %thread to i32
  %got = call i32 %get(i32 %id, i64 {ALLOWED_NBYTES}, ptr %allowed)
  %failed = icmp ne i32 %got, 0
  br i1 %failed, label %done, label %change
change:
  %byte = lshr i64 %processor, 3
  %place = getelementptr i8, ptr %allowed, i64 %byte
  %old = load i8, ptr %place
  %number = and i64 %processor, 7
  %shift = trunc i64 %number to i8
  %bit = shl i8 1, %shift
  %with = or i8 %old, %bit
  %without = xor i8 %with, %bit
  %new = select i1 %on, i8 %with, i8 %without
  %as.before = icmp eq i8 %new, %old
  br i1 %as.before, label %done, label %ask
ask:
  store i8 %new, ptr %place
  ; The system refuses a set without any processor.
  %answer = call i32 %set(i32 %id, i64 {ALLOWED_NBYTES}, ptr %allowed)
  %changed = icmp eq i32 %answer, 0
  ret i1 %changed
done:
  ret i1 false
}}

; Moves this thread to another processor if it is on the caller's.
define internal void @step_aside(ptr %state) {{
entry:
  %here = call i64 @processor(ptr %state)
  %p.home = getelementptr i64, ptr %state, i64 {HOME}
  %home = load atomic i64, ptr %p.home monotonic, align 8
  %known = icmp ult i64 %here, {8 * ALLOWED_NBYTES}
  %same = icmp eq i64 %here, %home
  %beside = and i1 %known, %same
  br i1 %beside, label %move, label %done
move:
  %moved = call i1 @allow(ptr %state, i64 0, i64 %here, i1 false)
  br i1 %moved, label %free, label %done
free:
  %freed = call i1 @allow(ptr %state, i64 0, i64 %here, i1 true)
  br label %done
done:
  ret void
}}

; Keeps a worker that is asleep away from this processor, so that it wakes on another one.
define internal void @send_away(ptr %state, ptr %line, i64 %here) {{
entry:
  %p.away = getelementptr i64, ptr %line, i64 {AWAY_FROM}
  %p.id = getelementptr i64, ptr %line, i64 {IDENTITY}
  %away = load atomic i64, ptr %p.away acquire, align 8
  %known = icmp ult i64 %here, {8 * ALLOWED_NBYTES}
  %free = icmp eq i64 %away, 0
  %id = load i64, ptr %p.id
  %named = icmp ne i64 %id, 0
  %clear = and i1 %known, %free
  %due = and i1 %clear, %named
  br i1 %due, label %send, label %done
send:
  %sent = call i1 @allow(ptr %state, i64 %id, i64 %here, i1 false)
  br i1 %sent, label %note, label %done
note:
  %mark = add i64 %here, 1
  store atomic i64 %mark, ptr %p.away release, align 8
  br label %done
done:
  ret void
}}

; A worker that was sent away may run anywhere again.
define internal void @come_back(ptr %state, ptr %line) {{
entry:
  %p.away = getelementptr i64, ptr %line, i64 {AWAY_FROM}
  %away = load atomic i64, ptr %p.away acquire, align 8
  %none = icmp eq i64 %away, 0
  br i1 %none, label %done, label %free
free:
  %processor = sub i64 %away, 1
  %freed = call i1 @allow(ptr %state, i64 0, i64 %processor, i1 true)
  store atomic i64 0, ptr %p.away release, align 8
  br label %done
done:
  ret void
}}
"""
