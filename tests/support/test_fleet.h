// Real holders in this process, a directory that is a map, and the reference to hold answers to.

#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "attention/backend.h"
#include "attention/mla_partial.h"
#include "client/requester.h"
#include "gtest/gtest.h"
#include "proto/base/log.h"
#include "server/holder/holder.h"
#include "tests/attention/reference.h"
#include "tests/support/soon.h"
#include "tests/support/test_corpus.h"
#include "transport/control.h"

namespace ckv::test {

// Holders by name, behind the interfaces that the stubs have. A holder can be stopped while calls
// are in progress. Thread-safe.
class TestFleet : public DirectoryControl, public HolderControlFactory {
 public:
  // `fabrics` must outlive the fleet.
  explicit TestFleet(std::vector<Fabric*> fabrics, Clock* clock = Clock::Real())
      : fabrics_(std::move(fabrics)), clock_(clock) {
    // Lanes break on purpose here, by the hundred.
    Logger().set_level(spdlog::level::err);
  }

  static HolderId Name(size_t i) { return {absl::StrFormat("h%d", i)}; }

  // Of holders that are started from now on, as in HolderOptions.
  uint64_t candidate_bytes_max = kCandidateBytesMax;

  // What holders that are started from now on compute with. It must outlive the fleet.
  void set_backend(Backend* backend) { backend_ = backend; }

  // `fill` puts chunks there before the directory names it.
  void StartHolder(size_t i, size_t capacity_bytes = size_t{64} << 20,
                   uint32_t session_count_max = 256,
                   const std::function<void(Holder&)>& fill = nullptr) {
    HolderOptions options;
    options.id = Name(i);
    options.clock = clock_;
    options.backend = backend_;
    options.capacity_bytes = capacity_bytes;
    options.fabrics = fabrics_;
    options.session_count_max = session_count_max;
    options.candidate_bytes_max = candidate_bytes_max;
    auto holder = Holder::Start(options);
    ASSERT_TRUE(holder.ok()) << holder.status();
    const uint64_t epoch = ++last_epoch_;
    (*holder)->lease().Grant({epoch}, kInstantMax);
    if (fill != nullptr) fill(**holder);
    absl::MutexLock lock(&mu_);
    holders_[Name(i).name] = *std::move(holder);
    members_[Name(i).name] = {
        Name(i), MemberRole::kHolder, absl::StrFormat("inproc:%d", i), {epoch}};
    members_[Name(i).name].kernel_target = KernelTargetIdOf(backend_->kernel_target());
  }
  void StopHolder(size_t i) {
    std::unique_ptr<Holder> stopped;
    absl::MutexLock lock(&mu_);
    stopped = std::move(holders_[Name(i).name]);
    holders_.erase(Name(i).name);
  }
  // As the directory does once the holder's lease has run out.
  void RemoveMember(size_t i) {
    absl::MutexLock lock(&mu_);
    members_.erase(Name(i).name);
  }
  // The holder is reached at `address`, as its member record says.
  void Place(size_t i, const std::string& address) {
    absl::MutexLock lock(&mu_);
    members_.at(Name(i).name).control_address = address;
  }
  // The directory says that the holder's kernels are of this target.
  void SetKernelTarget(size_t i, KernelTargetId target) {
    absl::MutexLock lock(&mu_);
    members_.at(Name(i).name).kernel_target = target;
  }
  // The holder answers at `address` alone from now on, and the directory says so.
  void Move(size_t i, const std::string& address) {
    Place(i, address);
    absl::MutexLock lock(&mu_);
    moved_[Name(i).name] = address;
  }
  Member member(size_t i) {
    absl::MutexLock lock(&mu_);
    return members_.at(Name(i).name);
  }
  Holder& holder(size_t i) {
    absl::MutexLock lock(&mu_);
    return *holders_.at(Name(i).name);
  }

  // Publishes `corpus` with chunk i on the holder placement[i], and puts the rows there.
  void Load(const std::string& name, const TestCorpus& corpus,
            const std::vector<size_t>& placement) {
    for (size_t i = 0; i < corpus.chunks.size(); ++i) {
      const absl::Status put =
          PutChunk(holder(placement[i]).store(), corpus.geometry, corpus.chunks[i]);
      ASSERT_TRUE(put.ok() || absl::IsAlreadyExists(put)) << put;
    }
    Publish(name, corpus, placement);
  }
  // Only publishes it: the holders have the rows.
  void Publish(const std::string& name, const TestCorpus& corpus,
               const std::vector<size_t>& placement) {
    Corpus published = corpus.Publish(name, "", {{Name(0)}});
    for (size_t i = 0; i < corpus.chunks.size(); ++i)
      published.chunks[i].set_holders({Name(placement[i])});
    absl::MutexLock lock(&mu_);
    corpora_[name] = published;
  }
  // Puts the rows of chunks on holder `i` as well, which answers for them under its lease from now
  // on.
  void Lease(const std::string& name, const TestCorpus& corpus, size_t i,
             const std::vector<size_t>& chunks) {
    for (const size_t chunk : chunks) {
      const absl::Status put = PutChunk(holder(i).store(), corpus.geometry, corpus.chunks[chunk]);
      ASSERT_TRUE(put.ok() || absl::IsAlreadyExists(put)) << put;
      Edit(name,
           [&](Corpus& published) { published.chunks[chunk].mutable_leased().push_back(Name(i)); });
    }
  }
  void Edit(const std::string& name, absl::FunctionRef<void(Corpus&)> edit) {
    absl::MutexLock lock(&mu_);
    edit(corpora_[name]);
  }
  void set_directory_down(bool down) { directory_down_ = down; }
  // From now on a session's answer does not list this fabric.
  void Unlist(FabricKind kind) {
    absl::MutexLock lock(&mu_);
    unlisted_ = kind;
  }
  // From now on every request for a session calls this first, with the holder's name and the
  // request's deadline. If it returns an error, that is the answer.
  using OnSession = std::function<absl::Status(const std::string& holder, Instant deadline)>;
  void set_on_session(OnSession on_session) {
    absl::MutexLock lock(&mu_);
    on_session_ = std::move(on_session);
  }
  int directory_calls() const { return directory_calls_; }
  int resolve_calls() const { return resolve_calls_; }
  int session_calls() const { return session_calls_; }

  absl::StatusOr<Corpus> GetCorpus(std::string_view name, std::string_view tenant,
                                   Instant) override {
    if (absl::Status status = Answer(); !status.ok()) return status;
    absl::MutexLock lock(&mu_);
    const auto it = corpora_.find(std::string(name));
    if (it == corpora_.end() || it->second.tenant != tenant)
      return absl::NotFoundError("no such corpus");
    return it->second;
  }
  absl::StatusOr<std::vector<Member>> ListMembers(Instant) override {
    if (absl::Status status = Answer(); !status.ok()) return status;
    absl::MutexLock lock(&mu_);
    std::vector<Member> members;
    for (const auto& [name, member] : members_) members.push_back(member);
    return members;
  }
  absl::StatusOr<std::vector<Corpus>> LocateChunk(const ChunkId& id, std::string_view,
                                                  Instant) override {
    if (absl::Status status = Answer(); !status.ok()) return status;
    absl::MutexLock lock(&mu_);
    std::vector<Corpus> found;
    for (const auto& [name, corpus] : corpora_) {
      for (const ChunkPlacement& chunk : corpus.chunks) {
        if (chunk.id == id) {
          found.push_back(corpus);
          found.back().chunks = {chunk};
        }
      }
    }
    if (found.empty()) return absl::NotFoundError("no corpus has it");
    return found;
  }
  absl::StatusOr<std::unique_ptr<HolderControl>> Connect(const Member& member) override {
    return std::make_unique<Control>(this, member.id.name, member.control_address);
  }

 private:
  class Control : public HolderControl {
   public:
    Control(TestFleet* fleet, std::string name, std::string address)
        : fleet_(fleet), name_(std::move(name)), address_(std::move(address)) {}
    absl::StatusOr<SessionAnswer> OpenSession(const SessionOffer& offer,
                                              Instant deadline) override {
      ++fleet_->session_calls_;
      if (const auto on_session = fleet_->on_session()) {
        if (absl::Status status = on_session(name_, deadline); !status.ok()) return status;
      }
      absl::MutexLock lock(&fleet_->mu_);
      Holder* holder = Find();
      if (holder == nullptr) return absl::UnavailableError("connection refused");
      auto answer = holder->OpenSession(offer, deadline);
      if (answer.ok()) answer->fabrics = fleet_->Kinds();
      return answer;
    }
    absl::Status CloseSession(SessionId session, Instant deadline) override {
      absl::MutexLock lock(&fleet_->mu_);
      Holder* holder = Find();
      if (holder == nullptr) return absl::UnavailableError("connection refused");
      return holder->CloseSession(session, deadline);
    }
    absl::StatusOr<std::vector<std::optional<ResolvedHandle>>> ResolveChunks(
        SessionId session, std::span<const ChunkId> ids, Instant deadline) override {
      ++fleet_->resolve_calls_;
      absl::MutexLock lock(&fleet_->mu_);
      Holder* holder = Find();
      if (holder == nullptr) return absl::UnavailableError("connection refused");
      return holder->ResolveChunks(session, ids, deadline);
    }

   private:
    Holder* Find() ABSL_EXCLUSIVE_LOCKS_REQUIRED(fleet_->mu_) {
      const auto moved = fleet_->moved_.find(name_);
      if (moved != fleet_->moved_.end() && moved->second != address_) return nullptr;
      const auto it = fleet_->holders_.find(name_);
      return it == fleet_->holders_.end() ? nullptr : it->second.get();
    }
    TestFleet* const fleet_;
    const std::string name_, address_;
  };

  std::vector<FabricKind> Kinds() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    std::vector<FabricKind> kinds;
    for (const Fabric* fabric : fabrics_) {
      if (fabric->kind() != unlisted_) kinds.push_back(fabric->kind());
    }
    return kinds;
  }
  OnSession on_session() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return on_session_;
  }
  absl::Status Answer() {
    ++directory_calls_;
    return directory_down_ ? absl::UnavailableError("the directory is down") : absl::OkStatus();
  }

  const std::vector<Fabric*> fabrics_;
  Clock* const clock_;
  Backend* backend_ = Backend::Cpu();
  std::atomic<bool> directory_down_{false};
  std::atomic<int> directory_calls_{0}, resolve_calls_{0}, session_calls_{0};
  std::atomic<uint64_t> last_epoch_{0};
  absl::Mutex mu_;
  std::map<std::string, std::unique_ptr<Holder>> holders_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, Member> members_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::string> moved_ ABSL_GUARDED_BY(mu_);  // addresses, by name
  std::map<std::string, Corpus> corpora_ ABSL_GUARDED_BY(mu_);
  std::optional<FabricKind> unlisted_ ABSL_GUARDED_BY(mu_);
  OnSession on_session_ ABSL_GUARDED_BY(mu_);
};

// Holders over one fabric, and a requester over it or another. All compute with `backend`.
struct Cluster {
  Cluster(Fabric* fabric, size_t holder_count, const LaneShape& shape, Fabric* requesters = nullptr,
          uint32_t call_count_max = 16, uint64_t local_cache_bytes = 0,
          LocalRowSource* local_row_source = nullptr, Backend* backend = Backend::Cpu())
      : fleet({fabric}) {
    fleet.set_backend(backend);
    for (size_t i = 0; i < holder_count; ++i) fleet.StartHolder(i);
    RequesterOptions options;
    options.fabrics = {requesters == nullptr ? fabric : requesters};
    options.lane_shape = shape;
    options.call_count_max = call_count_max;
    options.local_cache_bytes = local_cache_bytes;
    options.local_row_source = local_row_source;
    options.backend = backend;
    auto made = Requester::Create(options, &fleet, &fleet);
    EXPECT_TRUE(made.ok()) << made.status();
    requester = *std::move(made);
  }
  std::shared_ptr<const Corpus> Resolve(const std::string& name = "c") {
    auto corpus = requester->Resolve(name, "", Soon());
    EXPECT_TRUE(corpus.ok()) << corpus.status();
    return *corpus;
  }

  TestFleet fleet;
  std::unique_ptr<Requester> requester;
};

// Small slots, so that calls of a few rows are cut into several blocks: 12 query rows of 192 B, or
// 9 partials of 264 B, fit with their headers.
inline LaneShape SmallShape(uint32_t slot_count = 8) {
  return {.slot_count = slot_count, .request_bytes_max = 4096, .reply_bytes_max = 4096};
}

struct Answer {
  std::vector<float> o, m, l;
  Answer(uint32_t rows, uint32_t d_v) : o(size_t{rows} * d_v, 7), m(rows, 7), l(rows, 7) {}
  PartialView View() { return {o.data(), m.data(), l.data(), PartialDtype::kF32}; }
  bool Untouched() const {
    const auto seven = [](float v) { return v == 7; };
    return std::all_of(o.begin(), o.end(), seven) && std::all_of(m.begin(), m.end(), seven) &&
           std::all_of(l.begin(), l.end(), seven);
  }
  // Bits, so that -0 and 0 differ and NaNs compare.
  bool SameBits(const Answer& other) const {
    const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
      return a.size() == b.size() && std::memcmp(a.data(), b.data(), 4 * a.size()) == 0;
    };
    return same(o, other.o) && same(m, other.m) && same(l, other.l);
  }
};

// The f64 reference over the rows of `chunks`, one after another.
inline std::vector<reference::Partial> Reference(const TestCorpus& corpus, uint32_t layer,
                                                 const std::vector<uint32_t>& chunks,
                                                 const QueryView& q, const Selection& selection) {
  std::vector<uint16_t> rows;
  for (const uint32_t chunk : chunks) {
    const auto& more = corpus.chunks[chunk].layers[layer];
    rows.insert(rows.end(), more.begin(), more.end());
  }
  AttentionPiece piece;
  piece.q = q;
  piece.rows = {reinterpret_cast<const std::byte*>(rows.data()),
                static_cast<uint32_t>(rows.size() / corpus.geometry.d_qk),
                corpus.geometry.row_bytes()};
  piece.selection = selection;
  return reference::Attend(AttentionShape::Of(corpus.geometry), piece);
}

// Largest |o| of the reference.
inline double MaxAbsO(const std::vector<reference::Partial>& reference) {
  double largest = 0;
  for (const auto& row : reference) {
    for (const double value : row.o) largest = std::max(largest, std::fabs(value));
  }
  return largest;
}

// o within `tolerance`; m and l within f32 rounding of what went into them; empty rows exactly.
inline void ExpectNear(const Answer& got, const std::vector<reference::Partial>& want,
                       double tolerance) {
  const size_t d_v = want.empty() ? 0 : want[0].o.size();
  for (size_t row = 0; row < want.size(); ++row) {
    for (size_t d = 0; d < d_v; ++d)
      ASSERT_NEAR(got.o[row * d_v + d], want[row].o[d], tolerance) << "row " << row << " d " << d;
    if (want[row].l == 0) {
      ASSERT_EQ(got.m[row], kEmptyM);
      ASSERT_EQ(got.l[row], 0);
      continue;
    }
    // 96 products and sums of at most 1 x 1, 2^-24 each: 6e-6 of a logit, and as much of l.
    ASSERT_NEAR(got.m[row], want[row].m, 1e-5) << "row " << row;
    ASSERT_NEAR(got.l[row] * std::exp(double(got.m[row]) - want[row].m), want[row].l,
                1e-5 * want[row].l)
        << "row " << row;
  }
}

}  // namespace ckv::test
