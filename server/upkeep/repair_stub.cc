// Restore, on the repairer's thread, in order: the tenants whose corpora may have the chunk, its
// places in them, and then one holder after another, which is to push it here.

#include "server/upkeep/repair_stub.h"

#include <algorithm>
#include <utility>

#include "absl/container/btree_set.h"
#include "absl/strings/str_format.h"
#include "ckv/v1/holder.grpc.pb.h"
#include "client/grpc/channel_stub.h"
#include "client/grpc/grpc_status.h"
#include "proto/base/status.h"
#include "proto/convert.h"

namespace ckv {
namespace {

// The most tenants whose corpora are searched for a chunk with unknown readers.
constexpr size_t kTenantCountMax = 1024;

bool Names(const std::vector<HolderId>& holders, const HolderId& id) {
  return std::find(holders.begin(), holders.end(), id) != holders.end();
}

}  // namespace

// A call that Cancel can cancel while this object exists.
struct RepairStub::Call {
  Call(RepairStub* stub_in, Instant deadline) : stub(*stub_in) {
    SetDeadline(context, *stub.clock_, deadline, kControlTimeoutMax * 2);
    absl::MutexLock lock(&stub.mu_);
    stub.context_ = &context;
    if (stub.cancelled_) context.TryCancel();
  }
  ~Call() {
    absl::MutexLock lock(&stub.mu_);
    stub.context_ = nullptr;
  }
  RepairStub& stub;
  grpc::ClientContext context;
};

RepairStub::RepairStub(Member self, const std::string& directory, Clock* clock)
    : self_(std::move(self)),
      clock_(clock),
      directory_(directory, clock),
      watched_(directory, clock) {}

void RepairStub::Cancel() {
  absl::MutexLock lock(&mu_);
  cancelled_ = true;
  if (context_ != nullptr) context_->TryCancel();
}

absl::StatusOr<RepairSource::Restored> RepairStub::Restore(const LostChunk& lost,
                                                           Instant deadline) {
  std::vector<std::string> tenants = lost.readers;
  if (tenants.empty()) {
    CKV_ASSIGN_OR_RETURN(tenants, AllTenants(deadline));
  }
  CKV_ASSIGN_OR_RETURN(const std::vector<Member> members, directory_.ListMembers(deadline));
  absl::Status last = absl::NotFoundError("no corpus places it here");
  for (const std::string& tenant : tenants) {
    const auto places = directory_.LocateChunk(lost.id, tenant, deadline);
    if (absl::IsNotFound(places.status())) continue;
    if (!places.ok()) return places.status();
    for (const Corpus& place : *places) {
      if (place.chunks.size() != 1 || place.chunks[0].id != lost.id) continue;
      const ChunkPlacement& chunk = place.chunks[0];
      if (!Names(chunk.holders(), self_.id) && !Names(chunk.leased(), self_.id)) continue;
      const absl::Status restored = RestoreFor(place, members, deadline);
      if (restored.ok()) return Restored{place.geometry, place.tenant};
      // If several fail, keeps the error that is worth another attempt.
      if (absl::IsNotFound(last) || absl::IsFailedPrecondition(last)) last = restored;
      absl::MutexLock lock(&mu_);
      if (cancelled_) return absl::CancelledError("repair: this holder ends");
    }
  }
  return last;
}

absl::Status RepairStub::RestoreFor(const Corpus& place, const std::vector<Member>& members,
                                    Instant deadline) {
  const ChunkPlacement& chunk = place.chunks[0];
  std::vector<HolderId> holders = chunk.holders();
  holders.insert(holders.end(), chunk.leased().begin(), chunk.leased().end());
  absl::Status last = absl::FailedPreconditionError(absl::StrFormat(
      "corpus %s places it here alone: load the corpus again, with --replicas 2", place.name));
  for (const HolderId& holder : holders) {
    if (holder == self_.id) continue;
    const auto member = std::find_if(members.begin(), members.end(), [&](const Member& m) {
      return m.id == holder && m.role == MemberRole::kHolder;
    });
    if (member == members.end()) {
      last = absl::UnavailableError(absl::StrFormat("holder %s is away", holder.name));
      continue;
    }
    last = Push(*member, chunk.id, place, deadline);
    if (last.ok() || clock_->Now() >= deadline) return last;
  }
  return last;
}

absl::Status RepairStub::Push(const Member& from, const ChunkId& id, const Corpus& place,
                              Instant deadline) {
  const std::string requested =
      absl::StrFormat("holder %s at %s: PushChunks", from.id.name, from.control_address);
  const auto stub =
      v1::HolderService::NewStub(MakeChannel(from.control_address, kHolderMessageBytesMax));
  v1::PushChunksRequest request;
  request.add_ids(std::string(id.AsBytes()));
  *request.mutable_geometry() = ToProto(place.geometry);
  request.set_tenant(place.tenant);
  request.set_to_id(self_.id.name);
  request.set_to_address(self_.control_address);
  Call call(this, deadline);
  const auto reader = stub->PushChunks(&call.context, request);
  v1::PushChunksReply reply;
  const bool reported = reader->Read(&reply);
  CKV_RETURN_IF_ERROR(FromGrpc(reader->Finish(), requested));
  // The status alone is not enough: the peer sends a reply for each chunk that it pushed.
  return reported ? absl::OkStatus() : absl::InternalError(requested + ": no answer");
}

// A follower ends its watch if it knows a leader, and then the next one goes there.
absl::StatusOr<std::vector<std::string>> RepairStub::AllTenants(Instant deadline) {
  absl::StatusOr<std::vector<std::string>> tenants = AllTenantsOnce(deadline);
  for (size_t i = 1; i < watched_.count() && absl::IsUnavailable(tenants.status()); ++i)
    tenants = AllTenantsOnce(deadline);
  return tenants;
}

absl::StatusOr<std::vector<std::string>> RepairStub::AllTenantsOnce(Instant deadline) {
  v1::WatchRequest request;
  request.set_all_tenants(true);
  absl::btree_set<std::string> tenants = {""};
  const DirectoryCaller::Place place = watched_.BeginStream();
  Call call(this, deadline);
  const auto reader = place.stub->Watch(&call.context, request);
  v1::WatchEvent event;
  while (reader->Read(&event)) {
    if (event.synced()) {
      call.context.TryCancel();  // the next attempt asks for later changes
      (void)reader->Finish();
      return std::vector<std::string>(tenants.begin(), tenants.end());
    }
    const std::string& tenant = event.corpus_published().tenant();
    if (event.has_corpus_published() && tenants.size() < kTenantCountMax &&
        ValidateName("tenant", tenant).ok()) {
      tenants.insert(tenant);
    }
  }
  const grpc::Status status = reader->Finish();
  const absl::Status ended = watched_.EndStream(place, "Watch", status, call.context);
  return ended.ok() ? absl::UnavailableError("the directory ended the watch") : ended;
}

}  // namespace ckv
