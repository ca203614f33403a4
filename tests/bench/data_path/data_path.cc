#include "tests/bench/data_path/data_path.h"

#include <sched.h>
#include <sys/resource.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>
#include <utility>

#include "proto/base/status.h"
#include "tests/support/borrowed_control.h"
#include "tests/support/named_geometry.h"
#include "tests/support/test_corpus.h"
#include "transport/wire.h"

namespace ckv::bench {

OnCpu::OnCpu(unsigned cpu) : before_(sizeof(cpu_set_t)) {
  auto* const before = reinterpret_cast<cpu_set_t*>(before_.data());
  CKV_CHECK(sched_getaffinity(0, sizeof(*before), before) == 0);
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu % std::max(std::thread::hardware_concurrency(), 1u), &set);
  // Refused where the process may not use that CPU: the figures are the scheduler's then.
  (void)sched_setaffinity(0, sizeof(set), &set);
}

OnCpu::~OnCpu() {
  (void)sched_setaffinity(0, sizeof(cpu_set_t), reinterpret_cast<cpu_set_t*>(before_.data()));
}

double Quantile(std::vector<double> values, double fraction) {
  if (values.empty()) return 0;
  const auto rank = static_cast<std::ptrdiff_t>(fraction * double(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + rank, values.end());
  return values[size_t(rank)];
}

void Read(std::span<const std::byte> bytes) {
  benchmark::DoNotOptimize(XXH3_64bits(bytes.data(), bytes.size()));
}

int64_t SwitchesForced() {
  rusage usage = {};
  CKV_CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
  return usage.ru_nivcsw;
}

namespace {

void TakePart(const Side& side, const Turns& turns) {
  const Clock& clock = *Clock::Real();
  side.enter();
  for (uint32_t tried = 1;; ++tried) {
    for (const Instant warm = clock.Now() + kWarmUp; clock.Now() < warm;) side.sample(false);
    const int64_t before = SwitchesForced();
    for (uint32_t i = 0; i < turns.samples; ++i) side.sample(true);
    if (tried == turns.tries || SwitchesForced() == before) break;
    side.drop(turns.samples);
  }
  side.leave();
}

}  // namespace

void TakeTurns(const Turns& turns, const std::vector<Side>& sides) {
  for (uint32_t round = 0; round < turns.rounds; ++round) {
    for (const Side& side : sides) TakePart(side, turns);
  }
}

Fleet::Fleet(const FleetOptions& options)
    : fabric_(options.fabric == FabricKind::kTcp ? NewTcpFabric(Clock::Real())
                                                 : NewShmFabric(Clock::Real())) {
  Geometry geometry = *NamedGeometry("deepseek-v2-lite");
  geometry.revision = "bench";
  geometry.layers = options.layers;
  chunks_ = test::MakeTestCorpus(geometry, {options.token_count}, 1);
  HolderOptions holder;
  holder.id = {"h0"};
  holder.fabrics = {fabric_.get()};
  holder.capacity_bytes = size_t{128} << 20;
  holder.map_bytes_max = options.map_bytes_max;
  std::optional<OnCpu> pin;
  if (options.pinned) pin.emplace(kHolderCpu);
  holder_ = *Holder::Start(holder);
  pin.reset();
  holder_->lease().Grant({1}, kInstantMax);
  CKV_CHECK(test::PutCorpus(holder_->store(), chunks_).ok());
  corpus_ = chunks_.Publish("bench", "", {{HolderId{"h0"}}});
  RequesterOptions requester;
  requester.fabrics = {fabric_.get()};
  requester.spin_max = options.spin_max;
  requester.local_cache_bytes = options.local_cache_bytes;
  requester_ = *Requester::Create(requester, this, this);
}

Fleet::~Fleet() { requester_.reset(); }

absl::StatusOr<std::vector<Member>> Fleet::ListMembers(Instant) {
  return std::vector<Member>{{{"h0"}, MemberRole::kHolder, "inproc:0", {1}}};
}

absl::StatusOr<std::unique_ptr<HolderControl>> Fleet::Connect(const Member&) {
  return std::make_unique<test::BorrowedControl>(holder_.get());
}

AttendLane::AttendLane(Fleet& fleet, uint32_t row_count) {
  const Geometry& geometry = fleet.geometry();
  auto client =
      test::RawClient::Open(fleet.holder(), fleet.fabric(), geometry, {.shape = LaneShape{}});
  CKV_CHECK(client.ok());
  client_ = *std::move(client);
  id_of_slot_.resize(LaneShape{}.slot_count);
  std::mt19937 rng(2);
  test::RawAttend attend = {.row_count = row_count, .flags = kFlagPartialF32};
  attend.rows = test::RandomBf16(size_t{row_count} * geometry.d_qk, rng, 0.1f);
  attend.pieces.push_back({.handle = client_->Resolve(fleet.chunks())[0]});
  frame_.resize(LaneShape{}.request_bytes_max);
  frame_.resize(test::EncodeAttend(attend, geometry.d_qk, client_->Header(), frame_));
  std::memcpy(&header_, frame_.data(), sizeof(header_));
  expected_ = {.kind = WireKind::kAttend,
               .flags = kFlagPartialF32,
               .row_count = row_count,
               .partial_count = 1,
               .body_bytes = LayOutPartial(row_count, geometry.d_v, true).total_bytes};
  reply_bytes_ = static_cast<uint32_t>(sizeof(ReplyHeader) + expected_.body_bytes);
}

std::optional<uint64_t> AttendLane::Post(uint32_t layer, Duration timeout) {
  RequestLane& lane = client_->lane();
  const std::optional<uint32_t> slot = lane.Acquire();
  if (!slot) return std::nullopt;
  const std::span<std::byte> request = lane.request(*slot);
  std::memcpy(request.data() + sizeof(header_), frame_.data() + sizeof(header_),
              frame_.size() - sizeof(header_));
  ++header_.request_id;
  header_.layer = static_cast<uint16_t>(layer);
  header_.deadline_us = static_cast<uint32_t>(std::max<int64_t>(timeout.count() / 1000, 1));
  EncodeHeader(header_, request);
  id_of_slot_[*slot] = header_.request_id;
  CKV_CHECK(lane.Post(*slot, request_bytes()).ok());
  return header_.request_id;
}

std::optional<AttendLane::Answer> AttendLane::Poll() {
  RequestLane& lane = client_->lane();
  Completion done;
  if (lane.Poll({&done, 1}) == 0) {
    CKV_CHECK(lane.status().ok());
    return std::nullopt;
  }
  const std::span<const std::byte> reply = lane.reply(done.slot).first(done.bytes);
  const auto header = DecodeReplyHeader(reply);
  CKV_CHECK(header.ok() && header->request_id == id_of_slot_[done.slot]);
  Answer answer = {.id = header->request_id,
                   .code = static_cast<absl::StatusCode>(header->code),
                   .compute = Duration(header->compute_ns)};
  if (answer.code == absl::StatusCode::kOk) {
    expected_.request_id = header->request_id;
    CKV_CHECK(CheckReply(*header, reply.subspan(sizeof(ReplyHeader)), expected_).ok());
  }
  Read(reply);
  lane.Release(done.slot);
  return answer;
}

AttendLane::Answer AttendLane::Await() {
  while (true) {
    if (const auto answer = Poll()) return *answer;
  }
}

}  // namespace ckv::bench
