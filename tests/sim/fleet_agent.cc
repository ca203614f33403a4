// An agent: resolves a corpus, opens a context, and decodes steps over it, for ever.

#include <cstdint>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/context.h"
#include "tests/sim/fleet.h"

namespace ckv::sim {
namespace {

constexpr Duration kCallTime = std::chrono::seconds(2);
constexpr float kUntouched = 7;  // what the memory of an answer has before the call

}  // namespace

void Fleet::RunAgent(Life* life, Requester* requester, uint64_t seed) {
  std::mt19937_64 random(seed);
  while (!life->ending && !ends_) {
    AgentStep(life, requester, random);
    const int64_t pause = static_cast<int64_t>(random() % uint64_t{60 * kMs});
    Sim().SleepUntil(Sim().now() + (rests_ ? 10 * pause : pause));
  }
}

void Fleet::AgentStep(Life* life, Requester* requester, std::mt19937_64& random) {
  if (truth_.corpora().empty()) return;
  const KnownCorpus& known = *truth_.corpora()[random() % truth_.corpora().size()];
  // A call that began before the calm may fail in it.
  const int64_t began = is_calm_ ? 1 : 0;
  const auto deadline = [&] { return life->clock.Now() + kCallTime; };
  const auto returned = [&](std::string_view call, Instant until) {
    truth_.CheckReturned(call, *life, life->clock.TimeOf(until));
  };
  if (random() % 4 == 0) requester->Invalidate(random() % 2 == 0 ? "" : known.name);
  // Sometimes as another tenant, who must not see it.
  const bool as_stranger = random() % 8 == 0 && !known.tenant.empty();
  const std::string tenant = as_stranger ? "stranger" : known.tenant;
  Instant until = deadline();
  const auto corpus = requester->Resolve(known.name, tenant, until);
  returned("Resolve", until);
  if (as_stranger && corpus.ok()) {
    return truth_.Breach(absl::StrCat("a stranger reads ", known.name));
  }
  const bool may_be_missing = as_stranger || known.acknowledged == 0 || known.drop_began;
  if (!corpus.ok()) {
    if (absl::IsNotFound(corpus.status()) && may_be_missing) return;
    return Note(life, "Resolve", corpus.status(), began);
  }
  truth_.CheckCorpus(**corpus, tenant);
  if (truth_.failed()) return;

  const size_t chunk_count = (*corpus)->chunks.size();
  const ContextPart part = {.corpus = *corpus, .chunks = {}};
  ContextSpec spec;
  spec.parts = {&part, 1};
  spec.policy = static_cast<ContextPolicy>(random() % 3);
  until = deadline();
  auto context = requester->Open(spec, until);
  returned("Open", until);
  if (!context.ok()) {
    // Rows that do not fit the local cache cannot be cached.
    const bool is_full = absl::IsResourceExhausted(context.status());
    const bool is_old = known.drop_began || chunk_count < known.acknowledged;
    return Note(life, "Open", context.status(), is_full || is_old ? 0 : began);
  }
  const uint64_t steps = 1 + random() % 4;
  for (uint64_t step = 0; step < steps && !life->ending && !truth_.failed(); ++step) {
    const auto query = static_cast<uint32_t>(random() % kQueryCount);
    for (uint32_t layer = 0; layer < truth_.geometry().layers; ++layer) {
      if (!Decode(life, requester, *context, {&known, chunk_count, layer, query}, began)) return;
    }
  }
}

bool Fleet::Decode(Life* life, Requester* requester, const Context& context,
                   const Question& question, int64_t began) {
  const Geometry& geometry = truth_.geometry();
  Truth::Rows rows;
  rows.o.assign(size_t{kQueryRows} * geometry.d_v, kUntouched);
  rows.m.assign(kQueryRows, kUntouched);
  rows.l.assign(kQueryRows, kUntouched);
  Segment segment;
  segment.row_count = kQueryRows;
  segment.context = &context;
  LayerCall call;
  call.layer = question.layer;
  call.q = {truth_.query(question.query).data(), kQueryRows, geometry.d_qk};
  call.segments = {&segment, 1};
  call.wire = PartialDtype::kF32;
  call.deadline = life->clock.Now() + kCallTime;
  const absl::Status status =
      requester->Attend(call, {rows.o.data(), rows.m.data(), rows.l.data(), PartialDtype::kF32});
  truth_.CheckReturned("Attend", *life, life->clock.TimeOf(call.deadline));
  Note(life, "Attend", status, question.corpus->drop_began ? 0 : began);
  if (status.ok()) {
    truth_.CheckAnswer(question, rows);
    return true;
  }
  if (rows.o[0] != kUntouched) truth_.Breach("an answer was written for a call that failed");
  return false;
}

}  // namespace ckv::sim
