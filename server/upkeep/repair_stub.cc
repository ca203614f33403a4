// The calls of a CopySearch, on the repairer's thread. A holder that has the chunk is asked to push
// it here. The tenants of all corpora are those that a watch of the directory begins with.

#include "server/upkeep/repair_stub.h"

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

}  // namespace

// A call that Cancel can cancel while this object exists.
struct RepairStub::Call {
  Call(RepairStub* stub_in, Instant deadline) : stub(*stub_in) {
    SetDeadline(context, *stub.clock_, deadline, kControlTimeoutMax * 2);
    absl::MutexLock lock(&stub.mu_);
    stub.context_ = &context;
    if (stub.stopped()) context.TryCancel();
  }
  ~Call() {
    absl::MutexLock lock(&stub.mu_);
    stub.context_ = nullptr;
  }
  RepairStub& stub;
  grpc::ClientContext context;
};

RepairStub::RepairStub(const Member& self, const std::string& directory, Clock* clock)
    : CopySearch(self.id, clock),
      control_address_(self.control_address),
      clock_(clock),
      directory_(directory, clock),
      watched_(directory, clock) {}

void RepairStub::Cancel() {
  Stop();
  absl::MutexLock lock(&mu_);
  if (context_ != nullptr) context_->TryCancel();
}

absl::Status RepairStub::CopyFrom(const Member& from, const Corpus& place, Instant deadline) {
  const std::string requested =
      absl::StrFormat("holder %s at %s: PushChunks", from.id.name, from.control_address);
  const auto stub =
      v1::HolderService::NewStub(MakeChannel(from.control_address, kHolderMessageBytesMax));
  v1::PushChunksRequest request;
  request.add_ids(std::string(place.chunks[0].id.AsBytes()));
  *request.mutable_geometry() = ToProto(place.geometry);
  request.set_tenant(place.tenant);
  request.set_to_id(self().name);
  request.set_to_address(control_address_);
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
