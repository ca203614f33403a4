// Drops chunks that a dropped or replaced corpus no longer places. DropOrphans groups the chunks by
// holder. DropOn then drops them on each holder, in up to three rounds, because a chunk that was
// just queried is spared. Before each drop the directory is queried again, since another load may
// have published the chunk. DropCorpus drops the corpus itself first, and waits until its holders
// have recorded that.

#include "client/tools/ctl/fleet/orphans.h"
#include "client/grpc/corpus_changes.h"

#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "client/tools/ctl/fleet/kept_change.h"
#include "client/tools/ctl/output.h"
#include "proto/base/status.h"
#include "proto/convert.h"

namespace ckv::ctl {
namespace {

// A drop with any minimum idle time spares chunks that are pinned, or just being put.
constexpr uint64_t kOrphanIdleMs = 1;
// A spared chunk is tried again after a pause of more than that. Moving a corpus queries its old
// copies just before, and must not mistake its own query for another's use.
constexpr uint32_t kDropRoundCountMax = 3;
constexpr Duration kDropPause = std::chrono::milliseconds(kOrphanIdleMs + 1);
constexpr size_t kPlacedPageIds = 256;

// The drops on one holder.
class Dropper {
 public:
  Dropper(Fleet& fleet, const Member& holder)
      : fleet_(fleet), holder_(holder), stub_(ConnectHolder(holder)) {}

  // Drops chunks, and keeps in `ids` those that remain: spared, or not tried after an error.
  //   the directory's error; the holder's is in holder_status.
  absl::Status Run(std::vector<std::string>& ids) {
    std::vector<std::string> left;
    std::vector<uint32_t> placed;  // counts of the page at hand
    absl::Status status;
    for (size_t i = 0; i < ids.size(); ++i) {
      // Queried again, just before the drop: another load may have published the chunk since.
      if (i % kPlacedPageIds == 0 && status.ok() && holder_status_.ok())
        status = QueryPlaced(std::span(ids).subspan(i), placed);
      if (!status.ok() || !holder_status_.ok() ||
          (placed[i % kPlacedPageIds] == 0 && !Drop(ids[i])))
        left.push_back(std::move(ids[i]));
    }
    ids = std::move(left);
    return status;
  }
  uint32_t drop_count() const { return drop_count_; }
  const absl::Status& holder_status() const { return holder_status_; }

 private:
  // Sets `placed` to how many corpora place each of the first page of `ids` here.
  absl::Status QueryPlaced(std::span<const std::string> ids, std::vector<uint32_t>& placed) {
    CKV_ASSIGN_OR_RETURN(placed, fleet_.CountReferences(
                                     ids.first(std::min(ids.size(), kPlacedPageIds)), holder_.id));
    return absl::OkStatus();
  }

  // Whether the chunk is gone. If not, it was spared or the holder failed.
  bool Drop(const std::string& id) {
    grpc::ClientContext context;
    fleet_.Prepare(context);
    v1::DropChunkRequest request;
    request.set_id(id);
    request.set_idle_min_ms(kOrphanIdleMs);
    v1::DropChunkReply reply;
    const absl::Status status =
        HolderError(stub_->DropChunk(&context, request, &reply), holder_, "DropChunk");
    if (absl::IsNotFound(status)) return true;
    if (!status.ok()) {
      if (!absl::IsFailedPrecondition(status)) holder_status_ = status;
      return false;
    }
    ++drop_count_;
    return true;
  }

  Fleet& fleet_;
  const Member& holder_;
  const std::unique_ptr<v1::HolderService::StubInterface> stub_;
  uint32_t drop_count_ = 0;
  absl::Status holder_status_;
};

void Pause(Clock& clock, Duration duration) {
  const bool ended = false;
  absl::Mutex mu;
  absl::MutexLock lock(&mu);
  clock.Await(mu, absl::Condition(&ended), clock.Now() + duration);
}

// Returns how many of `ids` it dropped.
absl::StatusOr<uint32_t> DropOn(Fleet& fleet, const Member& holder, std::vector<std::string> ids,
                                std::vector<std::string>& warnings) {
  Dropper dropper(fleet, holder);
  CKV_RETURN_IF_ERROR(dropper.Run(ids));
  for (uint32_t round = 1;
       round < kDropRoundCountMax && !ids.empty() && dropper.holder_status().ok(); ++round) {
    Pause(fleet.clock(), kDropPause);
    // If the directory no longer answers, the remaining chunks stay, and are reported.
    if (!dropper.Run(ids).ok()) break;
  }
  if (!dropper.holder_status().ok()) {
    warnings.push_back(absl::StrFormat("%s\n  it keeps %s; ckvctl gc drops what stays unused",
                                       std::string(dropper.holder_status().message()),
                                       FormatCount(ids.size(), "chunk")));
  } else if (!ids.empty()) {
    warnings.push_back(absl::StrFormat(
        "holder %s keeps %s that %s pinned or asked for just now; ckvctl gc drops what stays "
        "unused",
        holder.id.name, FormatCount(ids.size(), "chunk"), ids.size() == 1 ? "is" : "are"));
  }
  return dropper.drop_count();
}

}  // namespace

absl::StatusOr<DropCounts> DropOrphans(
    Fleet& fleet, const google::protobuf::RepeatedPtrField<v1::ChunkPlacement>& orphans,
    std::vector<std::string>& warnings) {
  DropCounts counts;
  CKV_ASSIGN_OR_RETURN(const std::vector<Member> members, fleet.Members());
  std::map<std::string, std::vector<std::string>> drops;  // by holder
  for (const v1::ChunkPlacement& message : orphans) {
    CKV_ASSIGN_OR_RETURN(const ChunkPlacement orphan, FromProto(message));
    for (const auto* holders : {&orphan.holders(), &orphan.leased()}) {
      for (const HolderId& holder : *holders) drops[holder.name].emplace_back(orphan.id.AsBytes());
    }
  }
  for (auto& [holder, ids] : drops) {
    const std::string& name = holder;  // clang 14 captures no structured binding
    const auto member = std::find_if(members.begin(), members.end(), [&](const Member& m) {
      return m.id.name == name && m.role == MemberRole::kHolder;
    });
    if (member == members.end()) {
      warnings.push_back(
          absl::StrFormat("holder %s is gone; %d chunks on it were not dropped", name, ids.size()));
      continue;
    }
    CKV_ASSIGN_OR_RETURN(counts[name], DropOn(fleet, *member, std::move(ids), warnings));
  }
  return counts;
}

absl::StatusOr<DropCounts> DropCorpus(Fleet& fleet, const std::string& name,
                                      std::vector<std::string>& warnings) {
  CKV_ASSIGN_OR_RETURN(DirectoryCaller* const directory, fleet.directory());
  v1::DropCorpusRequest request;
  request.set_name(name);
  request.set_tenant(fleet.options().tenant);
  v1::DropCorpusReply reply;
  CallEnd end;
  bool answer_was_lost = false;
  const absl::Status status = ckv::DropCorpus(*directory, request, &reply,
                                              fleet.DirectoryDeadline(), &end, &answer_was_lost);
  CKV_RETURN_IF_ERROR(fleet.DirectoryError(status, end, "DropCorpus"));
  if (answer_was_lost) {
    warnings.push_back(
        "the directory's answer was lost: ckvctl gc drops the copies that no corpus places");
  }
  // For a corpus that it could not prove to be complete, the directory returns only the name. Then
  // the holders that have a part of the corpus are unknown.
  const absl::StatusOr<Corpus> dropped = FromProto(reply.corpus());
  const std::string late = dropped.ok() ? AwaitKeptBy(fleet, name, dropped->chunks) : "";
  if (!late.empty()) warnings.push_back(late);
  return DropOrphans(fleet, reply.orphans(), warnings);
}

}  // namespace ckv::ctl
