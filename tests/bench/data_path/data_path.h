// Shared parts of the data path's benchmarks: a holder with one chunk, requests made of bare
// frames, and sampling of a measure and of its floor in turn.
//
// Two threads do the work, each on a CPU of its own: the driver (the benchmark's thread) on
// kDriverCpu, the holder's dispatcher or a floor's peer on kHolderCpu. On one CPU they would wait
// for each other's time slices.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "benchmark/benchmark.h"
#include "client/requester.h"
#include "proto/base/clock.h"
#include "server/holder/holder.h"
#include "tests/server/dispatch/raw_client.h"
#include "transport/control.h"
#include "transport/fabric.h"

namespace ckv::bench {

inline constexpr unsigned kDriverCpu = 0;
inline constexpr unsigned kHolderCpu = 1;

// Pins this thread, and the threads that it starts, to one CPU until the end of the scope.
class OnCpu {
 public:
  explicit OnCpu(unsigned cpu);
  ~OnCpu();
  OnCpu(const OnCpu&) = delete;
  OnCpu& operator=(const OnCpu&) = delete;

 private:
  std::vector<std::byte> before_;  // a cpu_set_t
};

// The value that `fraction` of the values are below: 0.5 is the median. 0 of none.
double Quantile(std::vector<double> values, double fraction);

// How often a thread of this process has lost its CPU to another that wanted it, a neighbour's work
// mostly.
int64_t SwitchesForced();

// A driver's read of all the bytes, in place.
void Read(std::span<const std::byte> bytes);

// How samples are taken of a measure and of its floors: in turns, in one process.
struct Turns {
  uint32_t rounds = 1;
  uint32_t samples = 1;  // of a side in a round
  // The most times that a side's part of a round is taken, until no thread of this process lost its
  // CPU to another in it. The last one counts in any case.
  uint32_t tries = 3;
};
// A side is entered, called for kWarmUp and then for its samples, and left. By the end of the
// warm-up the other side's thread, which may spin for 2 ms after its last work, sleeps, and this
// side's is awake.
struct Side {
  std::function<void(bool counts)> sample;
  std::function<void(uint32_t samples)> drop = [](uint32_t) {};  // removes the last `samples`
  std::function<void()> enter = [] {};
  std::function<void()> leave = [] {};
};
inline constexpr Duration kWarmUp = std::chrono::milliseconds(5);
// Each round has the sides in their order.
void TakeTurns(const Turns& turns, const std::vector<Side>& sides);

struct FleetOptions {
  FabricKind fabric = FabricKind::kShm;
  uint32_t token_count = 2048;
  uint32_t layers = 1;
  Duration spin_max = RequesterOptions{}.spin_max;  // the requester's
  bool pinned = true;                               // the holder's threads to kHolderCpu
  std::optional<uint64_t> map_bytes_max = {};       // the holder's
  uint64_t local_cache_bytes = 0;                   // the requester's
};

// One holder with one chunk of DeepSeek-V2-Lite's geometry but for the layers, and a requester,
// both in this process and without gRPC.
class Fleet final : public DirectoryControl, public HolderControlFactory {
 public:
  explicit Fleet(const FleetOptions& options);
  ~Fleet() override;

  Holder& holder() { return *holder_; }
  Fabric& fabric() { return *fabric_; }
  Requester& requester() { return *requester_; }
  const Corpus& corpus() const { return corpus_; }
  const Geometry& geometry() const { return corpus_.geometry; }
  const test::TestCorpus& chunks() const { return chunks_; }
  ChunkPin Pin() { return *holder_->table().Pin(corpus_.chunks[0].id, corpus_.geometry); }

  absl::StatusOr<Corpus> GetCorpus(std::string_view, std::string_view, Instant) override {
    return corpus_;
  }
  absl::StatusOr<std::vector<Member>> ListMembers(Instant) override;
  absl::StatusOr<std::vector<Corpus>> LocateChunk(const ChunkId&, std::string_view,
                                                  Instant) override {
    return std::vector<Corpus>{corpus_};
  }
  absl::StatusOr<std::unique_ptr<HolderControl>> Connect(const Member&) override;

 private:
  std::unique_ptr<Fabric> fabric_;
  test::TestCorpus chunks_;
  std::unique_ptr<Holder> holder_;
  Corpus corpus_;
  std::unique_ptr<Requester> requester_;
};

// A session of one lane that attends the fleet's chunk, with `row_count` query rows and f32
// partials. One thread.
class AttendLane {
 public:
  AttendLane(Fleet& fleet, uint32_t row_count);

  // Writes a request into a slot and posts it. Returns its id, or nothing if no slot is free.
  std::optional<uint64_t> Post(uint32_t layer, Duration timeout = std::chrono::seconds(60));

  struct Answer {
    uint64_t id = 0;
    absl::StatusCode code = absl::StatusCode::kOk;
    Duration compute{0};  // kernel time of the batch it was in
  };
  // Returns the next answer, checked, read in place and released; nothing if none has arrived.
  std::optional<Answer> Poll();
  // The same, but spins until it arrives.
  Answer Await();

  uint32_t request_bytes() const { return static_cast<uint32_t>(frame_.size()); }
  uint32_t reply_bytes() const { return reply_bytes_; }
  RequestLane& lane() { return client_->lane(); }

 private:
  std::unique_ptr<test::RawClient> client_;
  std::vector<std::byte> frame_;  // of every request, but for the header's id, deadline and layer
  RequestHeader header_;
  ExpectedReply expected_;
  uint32_t reply_bytes_ = 0;
  std::vector<uint64_t> id_of_slot_;
};

}  // namespace ckv::bench
