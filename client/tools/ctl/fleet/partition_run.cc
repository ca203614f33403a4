// Executes a partition plan. Copy, in order: PushAll, FindMissing, and again for what is missing.
// Switch then publishes the new placement, if the corpus has not changed. PushAll starts threads
// for orders. An order is up to 64 chunks from one holder to another. Each thread repeats: wait for
// a turn (HasTurn), take an order of the pair with the most work (TakeOrder), run it (RunOrder),
// and on an error give its rest to other sources (Retry). One mutex guards what waits; calls run
// without it.

#include "client/tools/ctl/fleet/partition_run.h"
#include "client/grpc/corpus_changes.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>

#include "absl/strings/str_format.h"
#include "client/tools/ctl/output.h"
#include "proto/base/status.h"
#include "proto/convert.h"

namespace ckv::ctl {
namespace {

// The limit of one order: 64 chunks of 144 MB, as 2048 tokens of V3 are, at 25 MB/s.
constexpr Duration kOrderTimeout = std::chrono::minutes(6);
constexpr uint32_t kCheckThreadCount = 8;

absl::Status NothingSwitched(const absl::Status& status) {
  return absl::Status(
      status.code(),
      absl::StrFormat("%s\n  nothing was switched or dropped; run the same command again: what "
                      "was copied is reused",
                      std::string(status.message())));
}

}  // namespace

absl::StatusOr<std::unique_ptr<PartitionRun>> PartitionRun::Create(Fleet* fleet,
                                                                   const Corpus* corpus,
                                                                   const PartitionPlan* plan,
                                                                   std::span<const Member> members,
                                                                   OnCopied on_copied) {
  std::unique_ptr<PartitionRun> run(new PartitionRun(fleet, corpus, plan, std::move(on_copied)));
  CKV_RETURN_IF_ERROR(run->Prepare(members));
  return run;
}

absl::Status PartitionRun::Prepare(std::span<const Member> members) {
  for (const Member& member : members) {
    if (member.role != MemberRole::kHolder) continue;
    members_.push_back(member);
    stubs_.push_back(ConnectHolder(member));
  }
  {
    absl::MutexLock lock(&mu_);
    active_.resize(members_.size());
  }
  std::set<std::pair<uint32_t, uint32_t>> copied;  // chunk, to
  for (const ChunkMove& copy : plan_.copies) {
    Task task;
    task.chunk = copy.chunk;
    CKV_ASSIGN_OR_RETURN(task.to, MemberOf(copy.to));
    task.sources = SourcesOf(copy.chunk, task.to, &copy.from);
    if (task.sources.empty()) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "chunk %d (%s): none of its holders is alive\n  start one of them, or load the corpus "
          "again with --replace",
          copy.chunk, corpus_.chunks[copy.chunk].id.ShortHex()));
    }
    copied.emplace(copy.chunk, task.to);
    checks_.push_back({.chunk = copy.chunk, .to = task.to, .copied = true});
    copies_.push_back(std::move(task));
  }
  // A holder that keeps a chunk whose other copies are dropped is checked, too: it may have lost
  // it.
  std::set<uint32_t> losing;
  for (const ChunkMove& drop : plan_.drops) losing.insert(drop.chunk);
  for (const uint32_t chunk : losing) {
    for (const HolderId& holder : plan_.holders[chunk]) {
      CKV_ASSIGN_OR_RETURN(const uint32_t to, MemberOf(holder));
      if (!copied.contains({chunk, to})) checks_.push_back({.chunk = chunk, .to = to});
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> PartitionRun::MemberOf(const HolderId& holder) const {
  for (uint32_t i = 0; i < members_.size(); ++i) {
    if (members_[i].id == holder) return i;
  }
  return absl::FailedPreconditionError(
      absl::StrFormat("holder %s is not alive\n  ckvctl status shows who is", holder.name));
}

std::vector<uint32_t> PartitionRun::SourcesOf(uint32_t chunk, uint32_t to,
                                              const HolderId* first) const {
  const ChunkPlacement& placement = corpus_.chunks[chunk];
  std::vector<uint32_t> sources;
  for (const auto* holders : {&placement.holders(), &placement.leased()}) {
    for (const HolderId& holder : *holders) {
      const absl::StatusOr<uint32_t> member = MemberOf(holder);
      if (member.ok() && *member != to) sources.push_back(*member);
    }
  }
  if (first != nullptr) {
    const auto found = std::find_if(sources.begin(), sources.end(),
                                    [&](uint32_t member) { return members_[member].id == *first; });
    if (found != sources.end()) std::rotate(sources.begin(), found, sources.end());
  }
  return sources;
}

absl::Status PartitionRun::Copy() {
  CKV_RETURN_IF_ERROR(PushAll(copies_));
  std::vector<Check> checks = checks_;
  for (uint32_t pass = 0; pass < kPassCountMax; ++pass) {
    auto missing = FindMissing(checks);
    if (!missing.ok()) return NothingSwitched(missing.status());
    if (missing->empty()) return absl::OkStatus();
    std::vector<Task> again;
    for (const Check& check : *missing) {
      std::vector<uint32_t> sources = SourcesOf(check.chunk, check.to, nullptr);
      if (sources.empty()) {
        return NothingSwitched(absl::DataLossError(
            absl::StrFormat("chunk %d is not on holder %s, its only live one\n  load the corpus "
                            "again with --replace",
                            check.chunk, members_[check.to].id.name)));
      }
      again.push_back({.chunk = check.chunk, .to = check.to, .sources = std::move(sources)});
    }
    CKV_RETURN_IF_ERROR(PushAll(std::move(again)));
    checks = *std::move(missing);
  }
  return NothingSwitched(absl::AbortedError(
      absl::StrFormat("%s again and again gone from where they were pushed: is a collection of "
                      "garbage with too short a grace under way?",
                      FormatCount(checks.size(), "chunk"))));
}

absl::Status PartitionRun::PushAll(std::vector<Task> tasks) {
  size_t pair_count = 0;
  {
    absl::MutexLock lock(&mu_);
    status_ = absl::OkStatus();
    waiting_.clear();
    for (Task& task : tasks) waiting_[{task.from(), task.to}].push_back(std::move(task));
    // Reversed, because tasks are taken from the back, in the order of the corpus.
    for (auto& [pair, waiting] : waiting_) std::reverse(waiting.begin(), waiting.end());
    pair_count = waiting_.size();
  }
  std::vector<std::thread> threads;
  // A pair may have two orders in flight.
  const size_t count = std::min<size_t>(kOrderCountMax, 2 * pair_count);
  for (size_t i = 0; i < count; ++i) threads.emplace_back([this] { Work(); });
  for (std::thread& thread : threads) thread.join();
  absl::MutexLock lock(&mu_);
  return status_.ok() ? status_ : NothingSwitched(status_);
}

bool PartitionRun::HasTurn() const {
  if (!status_.ok() || (waiting_.empty() && order_count_ == 0)) return true;  // to end
  for (const auto& [pair, waiting] : waiting_) {
    if (active_[pair.first] < kHolderOrderCountMax && active_[pair.second] < kHolderOrderCountMax) {
      return true;
    }
  }
  return false;
}

std::vector<PartitionRun::Task> PartitionRun::TakeOrder() {
  std::vector<Task> order;
  // Takes from the pair with the most work, so that the last hours are not spent on one pair.
  auto most = waiting_.end();
  for (auto it = waiting_.begin(); it != waiting_.end(); ++it) {
    if (active_[it->first.first] >= kHolderOrderCountMax ||
        active_[it->first.second] >= kHolderOrderCountMax)
      continue;
    if (most == waiting_.end() || it->second.size() > most->second.size()) most = it;
  }
  if (most == waiting_.end()) return order;
  const auto [from, to] = most->first;
  std::vector<Task>& waiting = most->second;
  while (!waiting.empty() && order.size() < kOrderChunkCountMax) {
    order.push_back(std::move(waiting.back()));
    waiting.pop_back();
  }
  if (waiting.empty()) waiting_.erase(most);
  ++active_[from];
  ++active_[to];
  ++order_count_;
  return order;
}

void PartitionRun::Work() {
  while (true) {
    std::vector<Task> order;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(this, &PartitionRun::HasTurn));
      if (!status_.ok()) return;
      order = TakeOrder();
      if (order.empty()) return;  // all done
    }
    const Pair pair(order[0].from(), order[0].to);
    size_t done = 0;
    const absl::Status status = RunOrder(order, done);
    if (!status.ok()) Retry(std::move(order), done, status);
    absl::MutexLock lock(&mu_);
    --active_[pair.first];
    --active_[pair.second];
    --order_count_;
  }
}

absl::Status PartitionRun::RunOrder(const std::vector<Task>& order, size_t& done) {
  const Member& from = members_[order[0].from()];
  const Member& to = members_[order[0].to];
  v1::PushChunksRequest request;
  for (const Task& task : order)
    request.add_ids(std::string(corpus_.chunks[task.chunk].id.AsBytes()));
  *request.mutable_geometry() = ToProto(corpus_.geometry);
  request.set_tenant(corpus_.tenant);
  request.set_to_id(to.id.name);
  request.set_to_address(to.control_address);
  grpc::ClientContext context;
  fleet_.Prepare(context, kOrderTimeout);
  const auto reader = stubs_[order[0].from()]->PushChunks(&context, request);
  v1::PushChunksReply reply;
  absl::Status status;
  while (status.ok() && reader->Read(&reply)) {
    if (done == order.size() || reply.id() != request.ids(static_cast<int>(done))) {
      status = absl::InternalError(
          absl::StrFormat("holder %s at %s: PushChunks reported a chunk that was not requested",
                          from.id.name, from.control_address));
    } else {
      status = Arrived(order[done], reply);
      ++done;
    }
  }
  if (!status.ok()) context.TryCancel();
  const grpc::Status finished = reader->Finish();
  if (!status.ok()) return status;
  CKV_RETURN_IF_ERROR(HolderError(finished, from, "PushChunks"));
  if (done == order.size()) return absl::OkStatus();
  return absl::InternalError(absl::StrFormat("holder %s at %s: PushChunks ended after %d of %d",
                                             from.id.name, from.control_address, done,
                                             order.size()));
}

absl::Status PartitionRun::Arrived(const Task& task, const v1::PushChunksReply& reply) {
  absl::MutexLock lock(&mu_);
  if (!status_.ok()) return status_;
  CopyTally& tally = tallies_[members_[task.to].id.name];
  ++(reply.reused() ? tally.chunks_reused : tally.chunks_sent);
  tally.bytes_sent += reply.bytes_sent();
  status_ = on_copied_({.chunk = task.chunk,
                        .to = members_[task.to].id,
                        .reused = reply.reused(),
                        .row_bytes = BytesOf(task.chunk)});
  return status_;
}

void PartitionRun::Retry(std::vector<Task> order, size_t done, const absl::Status& status) {
  bool pause = false;
  absl::MutexLock lock(&mu_);
  for (size_t i = done; i < order.size(); ++i) {
    // If some arrived, only the first of the others failed. If none did, the holder failed.
    Task& task = order[i];
    if (done == 0 || i == done) ++task.try_count;
    if (task.try_count == kRoundCountMax * task.sources.size()) {
      status_.Update(Annotate(status, absl::StrFormat("chunk %d", task.chunk)));
      return;
    }
    pause = pause || (task.try_count > 0 && task.try_count % task.sources.size() == 0);
  }
  const auto ended = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !status_.ok(); };
  Clock& clock = fleet_.clock();
  if (pause) clock.Await(mu_, absl::Condition(&ended), clock.Now() + kRoundPause);
  for (size_t i = order.size(); i-- > done;)
    waiting_[{order[i].from(), order[i].to}].push_back(std::move(order[i]));
}

absl::StatusOr<std::vector<PartitionRun::Check>> PartitionRun::FindMissing(
    std::span<const Check> checks) {
  std::vector<Check> missing;
  absl::Status status;
  absl::Mutex mu;  // guards the two
  std::atomic<size_t> next{0};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < std::min<size_t>(kCheckThreadCount, checks.size()); ++t) {
    threads.emplace_back([&] {
      for (size_t i = next++; i < checks.size(); i = next++) {
        const absl::StatusOr<bool> there = IsThere(checks[i]);
        absl::MutexLock lock(&mu);
        if (there.ok() && !*there) missing.push_back(checks[i]);
        status.Update(there.status());
        if (!status.ok()) return;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CKV_RETURN_IF_ERROR(status);
  return missing;
}

absl::StatusOr<bool> PartitionRun::IsThere(const Check& check) {
  const auto there = QueryInfo(check.to, check.chunk);
  if (absl::IsNotFound(there.status())) return false;
  CKV_RETURN_IF_ERROR(there.status());
  absl::Status requested;
  for (const uint32_t source : SourcesOf(check.chunk, check.to, nullptr)) {
    const auto info = QueryInfo(source, check.chunk);
    requested.Update(info.status());
    if (!info.ok()) continue;
    if (std::equal(info->tensor_checksums().begin(), info->tensor_checksums().end(),
                   there->tensor_checksums().begin(), there->tensor_checksums().end()))
      return true;
    return absl::DataLossError(absl::StrFormat(
        "chunk %d: holders %s and %s have different rows of it\n  load the corpus again with "
        "--replace",
        check.chunk, members_[source].id.name, members_[check.to].id.name));
  }
  // If the chunk was copied, its source could not be queried. If not, only this holder has it.
  if (check.copied) return requested;
  return true;
}

absl::StatusOr<v1::GetChunkInfoReply> PartitionRun::QueryInfo(uint32_t member, uint32_t chunk) {
  v1::GetChunkInfoRequest request;
  request.set_id(std::string(corpus_.chunks[chunk].id.AsBytes()));
  *request.mutable_geometry() = ToProto(corpus_.geometry);
  request.set_tenant(corpus_.tenant);
  grpc::ClientContext context;
  fleet_.Prepare(context);
  v1::GetChunkInfoReply reply;
  CKV_RETURN_IF_ERROR(HolderError(stubs_[member]->GetChunkInfo(&context, request, &reply),
                                  members_[member], "GetChunkInfo"));
  return reply;
}

absl::StatusOr<v1::PublishCorpusReply> PartitionRun::Switch() {
  Corpus next = corpus_;
  for (size_t i = 0; i < next.chunks.size(); ++i) {
    next.chunks[i].set_holders(plan_.holders[i]);
    next.chunks[i].set_leased({});
  }
  CKV_ASSIGN_OR_RETURN(DirectoryCaller* const directory, fleet_.directory());
  v1::PublishCorpusRequest request;
  *request.mutable_corpus() = ToProto(next);
  request.set_replace(true);
  request.set_expected_version(corpus_.version);
  v1::PublishCorpusReply reply;
  CallEnd end;
  const absl::Status published =
      PublishCorpus(*directory, request, &reply, fleet_.DirectoryDeadline(), &end);
  const absl::Status status = fleet_.DirectoryError(published, end, "PublishCorpus");
  if (absl::IsFailedPrecondition(status)) {
    return NothingSwitched(absl::FailedPreconditionError(
        absl::StrFormat("the corpus was changed meanwhile: %s", std::string(status.message()))));
  }
  CKV_RETURN_IF_ERROR(status);
  return reply;
}

}  // namespace ckv::ctl
