// DirectoryCaller and the connections to holders, in place of client/grpc/directory_caller.cc and
// client/publish/holder_connect.cc.

#include "tests/sim/client_calls.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/grpc/directory_caller.h"
#include "client/grpc/grpc_status.h"
#include "client/publish/holder_calls.h"
#include "proto/base/status.h"
#include "proto/convert.h"
#include "proto/token_id.h"
#include "tests/sim/grpc_stubs.h"

namespace ckv::sim {

PublishCalls& ThePublishCalls() {
  static auto* const calls = new PublishCalls;
  return *calls;
}

namespace {

// One try of one directory, until a time.
class DirectoryTry final : public DirectoryServiceStub {
 public:
  DirectoryTry(size_t index, int64_t until) : index_(index), until_(until) {}

  grpc::Status ListMembers(grpc::ClientContext* /*context*/,
                           const v1::ListMembersRequest& /*request*/,
                           v1::ListMembersReply* reply) override {
    return Call<v1::ListMembersReply>(
        CallTo::kAny, reply, [](DirectoryState& state) -> absl::StatusOr<v1::ListMembersReply> {
          CKV_RETURN_IF_ERROR(state.CheckReturned());
          v1::ListMembersReply listed;
          for (const Member& member : state.Members()) *listed.add_members() = ToProto(member);
          return listed;
        });
  }
  grpc::Status Describe(grpc::ClientContext* /*context*/,
                        const v1::DescribeDirectoryRequest& /*request*/,
                        v1::DescribeDirectoryReply* reply) override {
    return Call<v1::DescribeDirectoryReply>(
        CallTo::kLeader, reply,
        [](DirectoryState& /*state*/) -> absl::StatusOr<v1::DescribeDirectoryReply> {
          v1::DescribeDirectoryReply described;
          described.set_path("/directory");
          return described;
        });
  }
  grpc::Status GetCorpus(grpc::ClientContext* /*context*/, const v1::GetCorpusRequest& request,
                         v1::GetCorpusReply* reply) override {
    return Call<v1::GetCorpusReply>(
        CallTo::kAny, reply,
        [request](DirectoryState& state) -> absl::StatusOr<v1::GetCorpusReply> {
          CKV_ASSIGN_OR_RETURN(const auto corpus,
                               state.Get(request.name(), request.tenant(), request.for_calls()));
          v1::GetCorpusReply got;
          *got.mutable_corpus() = ToProto(*corpus);
          return got;
        });
  }
  grpc::Status GetTenantKey(grpc::ClientContext* /*context*/,
                            const v1::GetTenantKeyRequest& request,
                            v1::GetTenantKeyReply* reply) override {
    return Call<v1::GetTenantKeyReply>(
        CallTo::kLeader, reply,
        [request](DirectoryState& state) -> absl::StatusOr<v1::GetTenantKeyReply> {
          CKV_ASSIGN_OR_RETURN(const TenantKey key,
                               state.TenantKeyOf(request.tenant(), request.make(), kInstantMax));
          v1::GetTenantKeyReply got;
          if (!key.IsZero()) got.set_key(std::string(key.AsBytes()));
          return got;
        });
  }
  grpc::Status PublishCorpus(grpc::ClientContext* /*context*/,
                             const v1::PublishCorpusRequest& request,
                             v1::PublishCorpusReply* reply) override {
    return Call<v1::PublishCorpusReply>(
        CallTo::kLeader, reply,
        [request](DirectoryState& state) -> absl::StatusOr<v1::PublishCorpusReply> {
          CKV_ASSIGN_OR_RETURN(Corpus corpus, FromProto(request.corpus()));
          ThePublishCalls().on_publish(corpus);
          v1::PublishCorpusReply published;
          CKV_ASSIGN_OR_RETURN(
              const uint64_t version,
              state.Publish(std::move(corpus), request.replace(), request.expected_version()));
          published.set_version(version);
          return published;
        });
  }

 private:
  template <typename Reply>
  grpc::Status Call(CallTo to, Reply* reply,
                    std::function<absl::StatusOr<Reply>(DirectoryState&)> handler) {
    const PublishCalls& calls = ThePublishCalls();
    auto result = CallOneDirectory<absl::StatusOr<Reply>>(*calls.directories, *calls.operator_life,
                                                          index_, until_, to, std::move(handler));
    if (!result.ok()) return ToGrpc(result.status());
    *reply = *std::move(result);
    return grpc::Status::OK;
  }

  const size_t index_;
  const int64_t until_;
};

constexpr int64_t kHolderCallMax = 2 * kSecond;

template <typename R>
R CallHolder(Node& node, std::function<R(Holder&, Life&)> handler) {
  const PublishCalls& calls = ThePublishCalls();
  return CallNode<R>(*calls.directories->network, &calls.operator_life->process, node,
                     Sim().now() + kHolderCallMax, [handler = std::move(handler)](Life& life) -> R {
                       if (life.holder == nullptr)
                         return R(absl::UnavailableError("it is starting or ending"));
                       return handler(*life.holder, life);
                     });
}

absl::StatusOr<ChunkInfo> InfoFrom(const v1::PutChunkRequest::Header& header) {
  ChunkInfo info;
  CKV_ASSIGN_OR_RETURN(info.id, ChunkId::FromBytes(header.id()));
  CKV_ASSIGN_OR_RETURN(info.parent, ChunkId::FromBytes(header.parent()));
  info.position = header.position();
  CKV_ASSIGN_OR_RETURN(info.token_ids,
                       TokenIdsFromBytes("token_ids", header.token_ids(), kChunkTokenCountMax));
  info.tensor_checksums.assign(header.tensor_checksums().begin(), header.tensor_checksums().end());
  return info;
}

// The messages of a put, which arrive together.
absl::Status Put(Holder& holder, const std::vector<v1::PutChunkRequest>& messages) {
  const v1::PutChunkRequest::Header& header = messages.at(0).header();
  CKV_ASSIGN_OR_RETURN(const ChunkInfo info, InfoFrom(header));
  CKV_ASSIGN_OR_RETURN(const Geometry geometry, FromProto(header.geometry()));
  CKV_ASSIGN_OR_RETURN(ChunkPut put, holder.store().Begin(info, geometry, header.tenant()));
  for (size_t i = 1; i < messages.size(); ++i) {
    const v1::PutChunkRequest::Rows& rows = messages[i].rows();
    CKV_RETURN_IF_ERROR(
        put.Write(rows.tensor(), rows.offset_bytes(), std::as_bytes(std::span(rows.rows()))));
  }
  return std::move(put).Finish();
}

class PutWriter final : public grpc::ClientWriterInterface<v1::PutChunkRequest> {
 public:
  explicit PutWriter(Node* node) : node_(*node) {}
  bool Write(const v1::PutChunkRequest& message, grpc::WriteOptions /*options*/) override {
    messages_.push_back(message);
    return true;
  }
  bool WritesDone() override { return true; }
  grpc::Status Finish() override {
    const absl::Status status = CallHolder<absl::Status>(
        node_,
        [messages = messages_](Holder& holder, Life& /*life*/) { return Put(holder, messages); });
    const auto id = ChunkId::FromBytes(messages_.at(0).header().id());
    if (id.ok() && (status.ok() || absl::IsAlreadyExists(status)))
      ThePublishCalls().on_put(node_, *id);
    return ToGrpc(status);
  }

 private:
  Node& node_;
  std::vector<v1::PutChunkRequest> messages_;
};

class HolderTry final : public HolderServiceStub {
 public:
  explicit HolderTry(Node* node) : node_(*node) {}

  grpc::Status GetChunkInfo(grpc::ClientContext* /*context*/,
                            const v1::GetChunkInfoRequest& request,
                            v1::GetChunkInfoReply* reply) override {
    using Reply = absl::StatusOr<v1::GetChunkInfoReply>;
    Reply result = CallHolder<Reply>(node_, [request](Holder& holder, Life& life) -> Reply {
      CKV_ASSIGN_OR_RETURN(const ChunkId id, ChunkId::FromBytes(request.id()));
      CKV_ASSIGN_OR_RETURN(const Geometry geometry, FromProto(request.geometry()));
      if (!holder.lease().LiveAt(life.clock.Now())) return absl::UnavailableError("no live lease");
      CKV_ASSIGN_OR_RETURN(const ChunkInfo info,
                           holder.store().InfoOf(id, geometry, request.tenant()));
      if (!holder.store().Touch(id)) return absl::NotFoundError("dropped just now");
      v1::GetChunkInfoReply got;
      got.set_parent(std::string(info.parent.AsBytes()));
      got.set_position(info.position);
      got.set_token_ids(Int32sToBytes(info.token_ids));
      for (const uint64_t checksum : info.tensor_checksums) got.add_tensor_checksums(checksum);
      return got;
    });
    if (!result.ok()) return ToGrpc(result.status());
    *reply = *std::move(result);
    return grpc::Status::OK;
  }
  grpc::ClientWriterInterface<v1::PutChunkRequest>* PutChunkRaw(
      grpc::ClientContext* /*context*/, v1::PutChunkReply* /*reply*/) override {
    return new PutWriter(&node_);
  }

 private:
  Node& node_;
};

Node& NodeOf(const Member& member) {
  Node* const node = NodeAt(*ThePublishCalls().nodes, member.control_address);
  CKV_CHECK(node != nullptr);
  return *node;
}

}  // namespace
}  // namespace ckv::sim

namespace ckv {

// One of the fleet's directories.
struct DirectoryCaller::Peer {
  size_t index;
};

// Whatever `addresses` are, it calls the directories of the fleet.
DirectoryCaller::DirectoryCaller(std::string_view addresses, Clock* clock,
                                 const DirectoryCallerOptions& options)
    : addresses_(addresses), clock_(*clock), options_(options) {
  const size_t count = sim::ThePublishCalls().directories->nodes.size();
  for (size_t i = 0; i < count; ++i) given_.push_back(std::make_shared<Peer>(Peer{i}));
  current_ = given_.front();
}
DirectoryCaller::~DirectoryCaller() = default;

absl::Status DirectoryCaller::Run(
    std::string_view name, absl::FunctionRef<grpc::Status(Stub&, grpc::ClientContext*)> one_try,
    Instant deadline, CallEnd* end) {
  CallEnd unused;
  if (end == nullptr) end = &unused;
  *end = {};
  deadline = std::min(deadline, clock_.Now() + options_.timeout_max);
  const size_t count = given_.size();
  for (size_t i = 0;; ++i) {
    const Duration left = std::max(deadline - clock_.Now(), Duration(0));
    const Duration limit = count == 1 ? left : std::min<Duration>(left, kTryTimeout);
    sim::DirectoryTry stub(i % count, sim::Sim().now() + limit.count());
    grpc::ClientContext context;
    end->status = one_try(stub, &context);
    absl::Status status =
        options_.convert(end->status, absl::StrCat("directory: ", std::string(name)));
    const bool decides = !absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status);
    if (decides || count == 1 || clock_.Now() >= deadline) return status;
    end->was_repeated = true;
    if (i % count == count - 1) clock_.WaitUntil(clock_.Now() + kRoundPause);
  }
}

DirectoryCaller::Place DirectoryCaller::BeginStream() {
  absl::MutexLock lock(&mu_);
  return {addresses_, sim::WatchOf(sim::ThePublishCalls().directories, current_->index)};
}

// The next stream goes to the next directory.
absl::Status DirectoryCaller::EndStream(const Place& /*place*/, std::string_view name,
                                        const grpc::Status& status,
                                        const grpc::ClientContext& /*context*/) {
  absl::MutexLock lock(&mu_);
  current_ = given_[(current_->index + 1) % given_.size()];
  return options_.convert(status, absl::StrCat("directory: ", std::string(name)));
}

std::unique_ptr<v1::HolderService::StubInterface> ConnectHolder(const Member& member) {
  return std::make_unique<sim::HolderTry>(&sim::NodeOf(member));
}

std::unique_ptr<v1::StoreService::StubInterface> ConnectStore(const Member& /*member*/) {
  // It reports no capacity.
  return std::make_unique<sim::StoreServiceStub>();
}

}  // namespace ckv
