// Each flow is a thread in Run: it takes an order from the queue, makes the copy, and reports it.
// A flow that finds the queue empty fetches the next orders, if the last renewal of the lease said
// that there are any. Make queries the sources in turn, from one that depends on the chunk, so that
// several holders share the reads. The pacer is asked before each piece of rows is taken from the
// stream, so the stream's flow control slows the source.

#include "server/upkeep/copy_maker.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"
#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/host/thread_priority.h"

namespace ckv {

CopyMaker::CopyMaker(const CopyMakerOptions& options, ChunkStore* store, CopySource* source)
    : options_(options),
      store_(*store),
      source_(*source),
      pacer_(options.clock, options.bytes_per_second) {
  for (uint32_t i = 0; i < std::max(1u, options_.flow_count); ++i)
    threads_.emplace_back([this] {
      LowerThreadPriority();
      Run();
    });
}

CopyMaker::~CopyMaker() { Stop(); }

void CopyMaker::Stop() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  pacer_.Stop();
  source_.Cancel();
  for (Thread& thread : threads_) thread.join();
  threads_.clear();
}

void CopyMaker::Note(uint64_t lease_id, uint32_t order_count) {
  absl::MutexLock lock(&mu_);
  if (lease_id != lease_id_) {
    // Another lease: what was ordered and reported under the last one counts no more.
    queue_.clear();
    Release(std::exchange(reports_, {}));
  }
  lease_id_ = lease_id;
  waiting_count_ = order_count;
  stats_.waiting_count = order_count;
}

void CopyMaker::SetOnPut(OnPut on_put) {
  absl::MutexLock lock(&mu_);
  on_put_ = std::move(on_put);
}

void CopyMaker::SetOnLeased(OnLeased on_leased) {
  absl::MutexLock lock(&mu_);
  on_leased_ = std::move(on_leased);
}

CopyMaker::Stats CopyMaker::stats() const {
  absl::MutexLock lock(&mu_);
  return stats_;
}

void CopyMaker::Run() {
  while (true) {
    CopyOrder order;
    {
      absl::MutexLock lock(&mu_);
      options_.clock->Await(mu_, absl::Condition(this, &CopyMaker::HasWork), kInstantMax);
      if (stop_) return;
      if (!queue_.empty()) {
        order = std::move(queue_.front());
        queue_.pop_front();
        if (!busy_.insert({order.corpus, order.chunk.id}).second) continue;
      } else {
        is_filling_ = true;
      }
    }
    if (order.sources.empty()) {
      Refill();
      SendReports();  // those that the directory did not take
      continue;
    }
    Execute(order);
    SendReports();
  }
}

void CopyMaker::Refill() {
  uint64_t lease_id = 0;
  {
    absl::MutexLock lock(&mu_);
    lease_id = lease_id_;
  }
  auto orders =
      source_.ListOrders(lease_id, kOrderCountMax, options_.clock->Now() + options_.call_timeout);
  absl::MutexLock lock(&mu_);
  is_filling_ = false;
  // If it fails or brings nothing new, the next renewal says how many there are.
  waiting_count_ = 0;
  if (orders.ok() && lease_id == lease_id_) {
    for (CopyOrder& order : *orders) {
      if (order.sources.empty() || busy_.contains({order.corpus, order.chunk.id})) continue;
      queue_.push_back(std::move(order));
      waiting_count_ = 1;  // more may follow
    }
  }
  for (const Key& key : std::exchange(released_, {})) busy_.erase(key);
}

// A list that is under way may still have an order that was reported meanwhile.
void CopyMaker::Release(const std::vector<CopyReport>& reports) {
  for (const CopyReport& report : reports) {
    Key key = {report.corpus, report.id};
    if (is_filling_) {
      released_.insert(std::move(key));
    } else {
      busy_.erase(key);
    }
  }
}

void CopyMaker::Execute(const CopyOrder& order) {
  const absl::StatusOr<uint64_t> made = Make(order);
  if (made.ok() && order.is_leased) {
    OnLeased on_leased;
    {
      absl::MutexLock lock(&mu_);
      on_leased = on_leased_;
    }
    if (on_leased) on_leased(order.chunk.id);
  }
  absl::MutexLock lock(&mu_);
  if (stop_) return;
  if (!made.ok()) {
    ++stats_.failed_count;
    Log().warn("{}: chunk {} of corpus \"{}\" was ordered and is not copied: {}", options_.name,
               order.chunk.id.ShortHex(), order.corpus.second,
               std::string(made.status().message()));
  } else if (*made == 0) {
    ++stats_.present_count;
  } else {
    ++stats_.made_count;
    stats_.made_bytes += *made;
  }
  CopyReport report = {order.corpus, order.chunk.id,
                       made.ok() ? std::string() : std::string(made.status().message())};
  if (reports_.size() < kReportCountMax) {
    reports_.push_back(std::move(report));
  } else {
    Release({std::move(report)});
  }
}

void CopyMaker::SendReports() {
  uint64_t lease_id = 0;
  std::vector<CopyReport> reports;
  {
    absl::MutexLock lock(&mu_);
    lease_id = lease_id_;
    reports.swap(reports_);
  }
  if (reports.empty()) return;
  const absl::Status sent =
      source_.Report(lease_id, reports, options_.clock->Now() + options_.call_timeout);
  absl::MutexLock lock(&mu_);
  // Without this lease, the directory orders what it still needs again.
  if (sent.ok() || absl::IsNotFound(sent) || lease_id != lease_id_) return Release(reports);
  const size_t room = kReportCountMax - std::min(kReportCountMax, reports_.size());
  const auto kept = reports.begin() + static_cast<ptrdiff_t>(std::min(room, reports.size()));
  reports_.insert(reports_.end(), reports.begin(), kept);
  Release({kept, reports.end()});
}

absl::StatusOr<uint64_t> CopyMaker::Make(const CopyOrder& order) {
  const uint64_t bytes = ChunkLayout(order.geometry, order.chunk.token_count).total_bytes();
  const std::chrono::duration<double> paced(4.0 * static_cast<double>(bytes) /
                                            static_cast<double>(options_.bytes_per_second));
  const Instant deadline =
      options_.clock->Now() + options_.copy_timeout + std::chrono::duration_cast<Duration>(paced);
  uint32_t first = 0;
  std::memcpy(&first, order.chunk.id.AsBytes().data(), sizeof(first));
  absl::Status last = absl::UnavailableError("no source");
  for (size_t i = 0; i < order.sources.size(); ++i) {
    const Member& holder = order.sources[(first + i) % order.sources.size()];
    absl::StatusOr<uint64_t> made = MakeFrom(holder, order, deadline);
    if (made.ok()) return made;
    last = Annotate(made.status(), absl::StrFormat("from %s", holder.id.name));
    // No source helps against a lack of space here.
    if (absl::IsResourceExhausted(last) || options_.clock->Now() >= deadline) break;
  }
  return last;
}

// Queries the info, and checks that it is of the ordered chunk: the id binds its inputs.
absl::StatusOr<ChunkInfo> CopyMaker::InfoFrom(const Member& holder, const CopyOrder& order,
                                              Instant deadline) {
  CKV_ASSIGN_OR_RETURN(ChunkInfo info, source_.GetInfo(holder, order, deadline));
  info.id = order.chunk.id;
  CKV_RETURN_IF_ERROR(ValidateChunkInfo(info, order.geometry));
  if (info.token_count() != order.chunk.token_count) {
    return absl::DataLossError(absl::StrFormat("it describes %d tokens, the directory has %d",
                                               info.token_count(), order.chunk.token_count));
  }
  return info;
}

absl::StatusOr<uint64_t> CopyMaker::MakeFrom(const Member& holder, const CopyOrder& order,
                                             Instant deadline) {
  CKV_ASSIGN_OR_RETURN(ChunkInfo info, InfoFrom(holder, order, deadline));
  const ChunkId id = order.chunk.id;
  NotePut(id);
  auto put = store_.Begin(std::move(info), order.geometry, order.corpus.first);
  if (absl::IsAlreadyExists(put.status())) {
    NotePut(id);
    CKV_RETURN_IF_ERROR(store_.PutAgain(id, Duration(0)));
    return uint64_t{0};
  }
  CKV_RETURN_IF_ERROR(put.status());
  uint64_t bytes = 0;
  const auto take = [&](uint32_t tensor, uint64_t offset_bytes, std::span<const std::byte> rows) {
    if (!pacer_.Acquire(rows.size(), deadline))
      return absl::DeadlineExceededError("the copy takes too long, or this holder ends");
    bytes += rows.size();
    return put->Write(tensor, offset_bytes, rows);
  };
  CKV_RETURN_IF_ERROR(source_.ReadRows(holder, order, take, deadline));
  absl::Status finished = (*std::move(put)).Finish();
  if (absl::IsAlreadyExists(finished)) finished = absl::OkStatus();
  CKV_RETURN_IF_ERROR(finished);
  NotePut(id);
  return bytes;
}

void CopyMaker::NotePut(const ChunkId& id) {
  OnPut on_put;
  {
    absl::MutexLock lock(&mu_);
    on_put = on_put_;
  }
  if (on_put) on_put(id);
}

}  // namespace ckv
