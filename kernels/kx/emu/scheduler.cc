// Who runs next, barriers, and what ordering they give.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "kernels/kx/emu/machine.h"

namespace strata::kx::emu {
namespace {

bool NewestFirst() {
  return machine->options->order == Order::kAhead || machine->options->order == Order::kAheadReverse;
}

int PopReady() {
  int thread;
  if (NewestFirst()) {
    thread = machine->ready.back();
    machine->ready.pop_back();
  } else {
    thread = machine->ready.front();
    machine->ready.pop_front();
  }
  return thread;
}

// The next thread to run, or -1 when nobody can: the block is over or deadlocked. Asynchronous copies
// complete only when every thread waits, which is as late as they may.
int Next() {
  while (machine->ready.empty() && !machine->loads.empty()) CompleteOneLoad();
  if (machine->options->order == Order::kShuffle && !machine->loads.empty() && machine->random() % 4 == 0) {
    CompleteOneLoad();
  }
  return machine->ready.empty() ? -1 : PopReady();
}

void SwitchTo(Fiber* from, int next, bool from_is_done) {
  ++machine->report->stats.switches;
  if (next >= 0) machine->current = next;
  SwitchFiber(from, next >= 0 ? machine->threads[next].fiber : machine->scheduler, from_is_done);
}

const char* WaitName(State state) {
  switch (state) {
    case State::kBarrier:
      return "a barrier that the others never reach";
    case State::kCollective:
      return "a warp collective that the other lanes never reach";
    case State::kMbarrier:
      return "an mbarrier phase whose arrivals or bytes never come";
    case State::kReady:
    case State::kDone:
      break;
  }
  return "nothing";
}

void Entry() {
  FiberStarted();
  (*machine->body)();
  Thread& thread = machine->self();
  DrainAtExit(thread);
  thread.state = State::kDone;
  --machine->alive;
  SwitchTo(&thread.fiber, Next(), true);
  __builtin_unreachable();
}

}  // namespace

void MergeInto(VectorClock& into, const VectorClock& from) {
  for (size_t i = 0; i < into.size(); ++i) into[i] = std::max(into[i], from[i]);
}

Foreign Merged(const Foreign& a, const Foreign& b) {
  if (!b || a == b) return a;
  if (!a) return b;
  auto merged = std::make_shared<std::map<uint32_t, Knowledge>>(*a);
  for (const auto& [block, clocks] : *b) {
    Knowledge& mine = (*merged)[block];
    if (!mine) {
      mine = clocks;
    } else if (mine != clocks) {
      auto both = std::make_shared<VectorClock>(*mine);
      MergeInto(*both, *clocks);
      mine = both;
    }
  }
  return merged;
}

Actor CurrentActor() {
  const Thread& thread = machine->self();
  return {static_cast<uint16_t>(machine->current), thread.clock, thread.knows.get()};
}

const Indices& Self() { return machine->threads[machine->current].ids; }

void Wake(std::span<int> threads) {
  const Order order = machine->options->order;
  if (order == Order::kReverse || order == Order::kAheadReverse) std::reverse(threads.begin(), threads.end());
  if (order == Order::kShuffle) std::shuffle(threads.begin(), threads.end(), machine->random);
  for (const int thread : threads) {
    machine->threads[thread].state = State::kReady;
    machine->ready.push_back(thread);
  }
}

void BlockCurrent(State state, Where where) {
  Thread& thread = machine->self();
  thread.state = state;
  thread.waits_at = where;
  const int me = machine->current;
  const int next = Next();
  if (next == me) return;
  SwitchTo(&thread.fiber, next, false);
  machine->current = me;
}

void Barrier(int id, int threads, bool wait, Where where) {
  const int need = threads == 0 ? machine->thread_count() : threads;
  if (id < 0 || id > 15 || need <= 0 || need % 32 != 0 || need > machine->thread_count()) {
    Complain(where, "barrier %d of %d threads: ids are 0..15, threads a multiple of 32 within the block", id,
             need);
    return;
  }
  BarrierState& barrier = machine->barriers[id];
  const int me = machine->current;
  Thread& self = machine->self();
  if (barrier.got == 0) {
    barrier.need = need;
    barrier.first = where;
  } else if (barrier.need != need) {
    Complain(where, "barrier %d is used with %d and, at %s, with %d threads", id, need,
             ShortPlace(barrier.first).c_str(), barrier.need);
  } else if (threads == 0 && !SamePlace(barrier.first, where)) {
    Complain(where, "divergent Sync: other threads of the block wait at %s",
             ShortPlace(barrier.first).c_str());
  }
  BarrierState::Arrival& arrival = barrier.warps[me / 32];
  if (arrival.lanes++ == 0) {
    arrival.where = where;
  } else if (!SamePlace(arrival.where, where)) {
    Complain(where, "divergent barrier %d: other lanes of the warp are at %s", id,
             ShortPlace(arrival.where).c_str());
  }

  // Arriving publishes what the thread knows and did so far, and nothing it does later.
  if (barrier.clocks.empty()) barrier.clocks.assign(machine->actor_count(), 0);
  if (barrier.last_merged != self.knows) MergeInto(barrier.clocks, *self.knows);
  barrier.last_merged = self.knows;
  barrier.clocks[me] = std::max(barrier.clocks[me], self.clock);
  ++self.clock;
  barrier.foreign = Merged(barrier.foreign, self.foreign);
  if (wait) barrier.waiting.push_back(me);

  if (++barrier.got < barrier.need) {
    if (wait) BlockCurrent(State::kBarrier, where);
    return;
  }
  for (int warp = 0; warp < machine->warp_count(); ++warp) {
    const int lanes = barrier.warps[warp].lanes;
    if (lanes != 0 && lanes != 32) {
      Complain(where, "barrier %d: %d lanes of warp %d arrived; whole warps must", id, lanes, warp);
    }
  }
  ++machine->report->stats.barriers;
  const auto clocks = std::make_shared<const VectorClock>(std::move(barrier.clocks));
  std::vector<int> waiting = std::move(barrier.waiting);
  for (const int thread : waiting) {
    // Lanes that only arrived have gone on, so their warp does not meet here.
    if (thread % 32 == 0) machine->traffic.Meet(thread / 32, machine->report->stats);
    machine->threads[thread].knows = clocks;
    machine->threads[thread].foreign = Merged(machine->threads[thread].foreign, barrier.foreign);
  }
  barrier = BarrierState();
  if (machine->options->order == Order::kForward) {
    // The last to arrive goes on.
    if (wait) waiting.pop_back();
    Wake(waiting);
    return;
  }
  Wake(waiting);
  if (wait) BlockCurrent(State::kReady, where);
}

void (*EntryPoint())() { return &Entry; }

void RunBlock() {
  std::vector<int> all(machine->threads.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int>(i);
  Wake(all);
  SwitchTo(&machine->scheduler, PopReady(), false);
  int shown = 0;
  for (int i = 0; i < machine->thread_count() && machine->alive > 0; ++i) {
    const Thread& thread = machine->threads[i];
    if (thread.state == State::kDone) continue;
    machine->current = i;
    Complain(thread.waits_at, "DEADLOCK: waits at %s", WaitName(thread.state));
    if (++shown == 8) break;
  }
}

}  // namespace strata::kx::emu
