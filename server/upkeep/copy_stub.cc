#include "server/upkeep/copy_stub.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "ckv/v1/holder.grpc.pb.h"
#include "client/grpc/channel_stub.h"
#include "client/grpc/grpc_status.h"
#include "proto/base/status.h"
#include "proto/convert.h"

namespace ckv {
namespace {

// A copy is paced, so its stream may take long.
constexpr Duration kReadTimeoutMax = std::chrono::hours(1);

absl::StatusOr<CopyOrder> OrderFrom(const v1::CopyOrder& message) {
  CopyOrder order;
  CKV_RETURN_IF_ERROR(ValidateCorpusName("corpus", message.corpus()));
  CKV_RETURN_IF_ERROR(ValidateName("tenant", message.tenant()));
  order.corpus = {message.tenant(), message.corpus()};
  CKV_ASSIGN_OR_RETURN(order.geometry, FromProto(message.geometry()));
  CKV_ASSIGN_OR_RETURN(order.chunk, FromProto(message.chunk()));
  if (order.chunk.token_count > kChunkTokenCountMax)
    return absl::InvalidArgumentError("a chunk with too many tokens");
  order.is_leased = message.is_leased();
  for (const v1::Member& source : message.sources()) {
    CKV_ASSIGN_OR_RETURN(Member member, FromProto(source));
    order.sources.push_back(std::move(member));
  }
  return order;
}

}  // namespace

// While it exists, Cancel cancels the call of `context`.
class CopyStub::Cancellable {
 public:
  Cancellable(CopyStub* stub, grpc::ClientContext* context) : stub_(*stub), context_(context) {
    absl::MutexLock lock(&stub_.mu_);
    stub_.contexts_.insert(context_);
    if (stub_.cancelled_) context_->TryCancel();
  }
  ~Cancellable() {
    absl::MutexLock lock(&stub_.mu_);
    stub_.contexts_.erase(context_);
  }
  Cancellable(const Cancellable&) = delete;
  Cancellable& operator=(const Cancellable&) = delete;

 private:
  CopyStub& stub_;
  grpc::ClientContext* const context_;
};

CopyStub::CopyStub(const std::string& directory, DirectoryState* local, Clock* clock)
    : local_(local),
      clock_(clock),
      infos_(clock),
      directory_(directory.empty() ? nullptr
                                   : std::make_unique<DirectoryCaller>(directory, clock)) {}

void CopyStub::Cancel() {
  absl::MutexLock lock(&mu_);
  cancelled_ = true;
  for (grpc::ClientContext* const context : contexts_) context->TryCancel();
}

absl::StatusOr<std::vector<CopyOrder>> CopyStub::ListOrders(uint64_t lease_id, uint32_t count_max,
                                                            Instant deadline) {
  if (directory_ == nullptr) return local_->replication().ListOrders(lease_id, count_max);
  v1::ListCopyOrdersRequest request;
  request.set_lease_id(lease_id);
  request.set_count_max(count_max);
  v1::ListCopyOrdersReply reply;
  const auto one_try = [&](DirectoryCaller::Stub& stub, grpc::ClientContext* context) {
    const Cancellable cancellable(this, context);
    return stub.ListCopyOrders(context, request, &reply);
  };
  CKV_RETURN_IF_ERROR(directory_->Run("ListCopyOrders", one_try, deadline));
  std::vector<CopyOrder> orders;
  for (const v1::CopyOrder& message : reply.orders()) {
    CKV_ASSIGN_OR_RETURN(CopyOrder order, OrderFrom(message));
    orders.push_back(std::move(order));
  }
  return orders;
}

absl::Status CopyStub::Report(uint64_t lease_id, std::span<const CopyReport> reports,
                              Instant deadline) {
  if (directory_ == nullptr) return local_->replication().ReportCopies(lease_id, reports);
  v1::ReportCopiesRequest request;
  request.set_lease_id(lease_id);
  for (const CopyReport& report : reports) {
    v1::ReportCopiesRequest::Copy& copy = *request.add_copies();
    copy.set_tenant(report.corpus.first);
    copy.set_corpus(report.corpus.second);
    copy.set_id(std::string(report.id.AsBytes()));
    copy.set_error(report.error);
  }
  v1::ReportCopiesReply reply;
  const auto one_try = [&](DirectoryCaller::Stub& stub, grpc::ClientContext* context) {
    const Cancellable cancellable(this, context);
    return stub.ReportCopies(context, request, &reply);
  };
  return directory_->Run("ReportCopies", one_try, deadline);
}

absl::StatusOr<ChunkInfo> CopyStub::GetInfo(const Member& holder, const CopyOrder& order,
                                            Instant deadline) {
  return infos_.GetChunkInfo(holder, order.chunk.id, order.geometry, order.corpus.first, deadline);
}

absl::Status CopyStub::ReadRows(const Member& holder, const CopyOrder& order, TakeRows take,
                                Instant deadline) {
  const auto stub =
      v1::HolderService::NewStub(MakeChannel(holder.control_address, kHolderMessageBytesMax));
  v1::ReadChunkRequest request;
  request.set_id(std::string(order.chunk.id.AsBytes()));
  *request.mutable_geometry() = ToProto(order.geometry);
  request.set_tenant(order.corpus.first);
  grpc::ClientContext context;
  SetDeadline(context, *clock_, deadline, kReadTimeoutMax);
  const Cancellable cancellable(this, &context);
  const auto reader = stub->ReadChunk(&context, request);
  v1::ReadChunkReply part;
  absl::Status taken;
  while (taken.ok() && reader->Read(&part)) {
    taken = take(part.tensor(), part.offset_bytes(),
                 std::as_bytes(std::span(part.rows().data(), part.rows().size())));
  }
  if (!taken.ok()) context.TryCancel();
  const absl::Status status = FromGrpc(
      reader->Finish(),
      absl::StrFormat("holder %s at %s: ReadChunk", holder.id.name, holder.control_address));
  return taken.ok() ? status : taken;
}

}  // namespace ckv
