// A call in order: Members::Try picks the member that answered last, makes one try with a time
// limit of its own, and goes to the next member while the error may be this member's. Ask does that
// for unary calls. A lease is renewed over a stream that has one request and one answer. A watch is
// a stream at one member; its owner starts it again elsewhere.

#include "server/directory/etcd/etcd_client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "client/grpc/channel_stub.h"
#include "client/grpc/grpc_status.h"
#include "etcd/etcd.grpc.pb.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

namespace pb = etcdserverpb;

// A member without a leader refuses calls that have it at once, and ends streams when it loses its
// leader. Otherwise they would wait.
constexpr char kNeedsLeaderKey[] = "hasleader";
// Pings more often than each 5 s are ended by etcd's defaults.
constexpr int kPingMs = 6000;
constexpr int kPingTimeoutMs = 2000;
// Between two rounds over all members.
constexpr Duration kRoundPause = std::chrono::milliseconds(50);
// Pages of a read: so many pairs at first, then as many as make about kPageBytes.
constexpr int64_t kPagePairsMin = 16;
constexpr int64_t kPagePairsMax = 4096;
constexpr size_t kPageBytes = size_t{1} << 20;

std::shared_ptr<grpc::Channel> ChannelTo(const std::string& endpoint) {
  KeepGrpcUp();
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMessageBytesMax);
  arguments.SetMaxSendMessageSize(kMessageBytesMax);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kPingMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPingTimeoutMs);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(endpoint, grpc::InsecureChannelCredentials(), arguments);
}

EtcdPair FromProto(const pb::KeyValue& pair) {
  return {.key = pair.key(),
          .value = pair.value(),
          .create_revision = pair.create_revision(),
          .mod_revision = pair.mod_revision(),
          .lease = pair.lease()};
}

template <typename Request>
void SetKeys(const EtcdKeys& keys, Request* request) {
  request->set_key(keys.begin);
  if (!keys.end.empty()) request->set_range_end(keys.end);
}

void SetCondition(const EtcdCondition& condition, pb::Compare* compare) {
  compare->set_result(pb::Compare::EQUAL);
  compare->set_key(condition.key);
  switch (condition.of) {
    case EtcdCondition::Of::kCreateRevision:
      compare->set_target(pb::Compare::CREATE);
      compare->set_create_revision(condition.revision);
      break;
    case EtcdCondition::Of::kModRevision:
      compare->set_target(pb::Compare::MOD);
      compare->set_mod_revision(condition.revision);
      break;
    case EtcdCondition::Of::kValue:
      compare->set_target(pb::Compare::VALUE);
      compare->set_value(condition.value);
      break;
  }
}

pb::TxnRequest ToProto(const EtcdTransaction& transaction) {
  pb::TxnRequest request;
  for (const EtcdCondition& condition : transaction.conditions)
    SetCondition(condition, request.add_compare());
  for (const EtcdWrite& write : transaction.writes) {
    pb::RequestOp* const op = request.add_success();
    if (write.kind == EtcdWrite::Kind::kDelete) {
      SetKeys(write.keys, op->mutable_request_delete_range());
      continue;
    }
    pb::PutRequest* const put = op->mutable_request_put();
    put->set_key(write.keys.begin);
    put->set_value(write.value);
    put->set_lease(write.lease);
  }
  for (const EtcdKeys& keys : transaction.reads_if_refused)
    SetKeys(keys, request.add_failure()->mutable_request_range());
  return request;
}

// Whether another member may do better: this one cannot be reached, has no leader, or is silent.
bool MayBeMembers(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::DEADLINE_EXCEEDED:
    case grpc::StatusCode::CANCELLED:
    case grpc::StatusCode::UNKNOWN:
    case grpc::StatusCode::INTERNAL:
      return true;
    default:
      return false;
  }
}

}  // namespace

EtcdKeys EtcdKeys::Prefix(std::string prefix) {
  CKV_CHECK(!prefix.empty() && static_cast<uint8_t>(prefix.back()) != 0xff);
  std::string end = prefix;
  ++end.back();
  return {std::move(prefix), std::move(end)};
}

class EtcdClient::Members {
 public:
  struct Member {
    std::string endpoint;
    std::shared_ptr<grpc::Channel> channel;
    std::unique_ptr<pb::KV::Stub> kv;
    std::unique_ptr<pb::Watch::Stub> watch;
    std::unique_ptr<pb::Lease::Stub> lease;
    std::unique_ptr<pb::Maintenance::Stub> maintenance;
  };

  Members(std::vector<std::string> endpoints, Clock* clock) : clock_(*clock) {
    CKV_CHECK(!endpoints.empty());
    for (std::string& endpoint : endpoints) {
      Member member;
      member.channel = ChannelTo(endpoint);
      member.endpoint = std::move(endpoint);
      member.kv = pb::KV::NewStub(member.channel);
      member.watch = pb::Watch::NewStub(member.channel);
      member.lease = pb::Lease::NewStub(member.channel);
      member.maintenance = pb::Maintenance::NewStub(member.channel);
      members_.push_back(std::move(member));
    }
  }

  // Calls `once` with members in turn until one answers: with a context whose deadline is set.
  absl::Status Try(std::string_view call, Instant deadline,
                   absl::FunctionRef<grpc::Status(Member&, grpc::ClientContext&)> once) {
    deadline = std::min(deadline, clock_.Now() + kCallMax);
    const size_t first = current_.load(std::memory_order_relaxed);
    grpc::Status status(grpc::StatusCode::DEADLINE_EXCEEDED, "the deadline had passed");
    for (size_t i = 0; clock_.Now() < deadline; ++i) {
      const size_t index = (first + i) % members_.size();
      Member& member = members_[index];
      // A wait in gRPC, because a connection is made only while some thread is in it.
      if (i > 0 && i % members_.size() == 0)
        (void)member.channel->WaitForConnected(gpr_time_add(
            gpr_now(GPR_CLOCK_MONOTONIC),
            gpr_time_from_millis(kRoundPause / std::chrono::milliseconds(1), GPR_TIMESPAN)));
      grpc::ClientContext context;
      context.AddMetadata(kNeedsLeaderKey, "true");
      SetDeadline(context, clock_, deadline, kTryMax);
      status = once(member, context);
      if (status.ok()) {
        current_.store(index, std::memory_order_relaxed);
        return absl::OkStatus();
      }
      if (!MayBeMembers(status)) return Error(call, member, status);
    }
    return Error(call, members_[first], status);
  }

  template <typename Request, typename Reply, typename Service>
  absl::Status Ask(std::string_view call, std::unique_ptr<Service> Member::*service,
                   grpc::Status (Service::*method)(grpc::ClientContext*, const Request&, Reply*),
                   const Request& request, Instant deadline, Reply& reply) {
    return Try(call, deadline, [&](Member& member, grpc::ClientContext& context) {
      return ((*(member.*service)).*method)(&context, request, &reply);
    });
  }

  Member& current() { return members_[current_.load(std::memory_order_relaxed)]; }
  // Makes later calls begin with another member than this one.
  void Leave(const Member& member) {
    size_t index = static_cast<size_t>(&member - members_.data());
    current_.compare_exchange_strong(index, (index + 1) % members_.size());
  }

  // Registers a watch that StopWatches ends. Returns false once they are stopped.
  bool BeginWatch(grpc::ClientContext* context) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (stopped_) return false;
    watches_.insert(context);
    return true;
  }
  // Returns whether StopWatches ended it.
  bool EndWatch(grpc::ClientContext* context) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    watches_.erase(context);
    return stopped_;
  }
  void StopWatches() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    stopped_ = true;
    for (grpc::ClientContext* const context : watches_) context->TryCancel();
  }

  absl::Status Error(std::string_view call, const Member& member,
                     const grpc::Status& status) const {
    return FromPeer(status, absl::StrFormat("etcd %s at %s", call, member.endpoint));
  }

 private:
  Clock& clock_;
  std::vector<Member> members_;
  std::atomic<size_t> current_{0};
  absl::Mutex mu_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::set<grpc::ClientContext*> watches_ ABSL_GUARDED_BY(mu_);
};

EtcdClient::EtcdClient(std::vector<std::string> endpoints, Clock* clock)
    : members_(std::make_unique<Members>(std::move(endpoints), clock)) {}
EtcdClient::~EtcdClient() = default;

absl::StatusOr<int64_t> EtcdClient::ReadPages(const EtcdKeys& keys, bool keys_only,
                                              int64_t revision, Instant deadline,
                                              absl::FunctionRef<absl::Status(EtcdPair)> take) {
  pb::RangeRequest request;
  SetKeys(keys, &request);
  request.set_keys_only(keys_only);
  request.set_revision(revision);
  request.set_limit(kPagePairsMin);
  while (true) {
    pb::RangeResponse reply;
    CKV_RETURN_IF_ERROR(members_->Ask("read", &Members::Member::kv, &pb::KV::Stub::Range, request,
                                      deadline, reply));
    // All pages are as of the first one.
    if (request.revision() == 0) request.set_revision(reply.header().revision());
    for (const pb::KeyValue& pair : reply.kvs()) CKV_RETURN_IF_ERROR(take(FromProto(pair)));
    if (!reply.more() || reply.kvs().empty()) return request.revision();
    // The next key in the order of bytes.
    request.set_key(reply.kvs().rbegin()->key() + std::string(1, '\0'));
    const size_t bytes = std::max<size_t>(1, reply.ByteSizeLong());
    const auto fitting = static_cast<int64_t>(reply.kvs().size() * kPageBytes / bytes);
    request.set_limit(std::clamp(fitting, kPagePairsMin, kPagePairsMax));
  }
}

absl::StatusOr<EtcdOutcome> EtcdClient::Commit(const EtcdTransaction& transaction,
                                               Instant deadline) {
  CKV_CHECK(transaction.writes.size() <= kWriteCountMax);
  pb::TxnResponse reply;
  CKV_RETURN_IF_ERROR(members_->Ask("write", &Members::Member::kv, &pb::KV::Stub::Txn,
                                    ToProto(transaction), deadline, reply));
  EtcdOutcome outcome = {
      .applied = reply.succeeded(), .revision = reply.header().revision(), .read = {}};
  for (const pb::ResponseOp& op : reply.responses()) {
    for (const pb::KeyValue& pair : op.response_range().kvs())
      outcome.read.push_back(FromProto(pair));
  }
  return outcome;
}

absl::Status EtcdClient::Compact(int64_t revision, Instant deadline) {
  pb::CompactionRequest request;
  request.set_revision(revision);
  pb::CompactionResponse reply;
  return members_->Ask("compaction", &Members::Member::kv, &pb::KV::Stub::Compact, request,
                       deadline, reply);
}

absl::StatusOr<int64_t> EtcdClient::GrantLease(Duration ttl, Instant deadline) {
  pb::LeaseGrantRequest request;
  request.set_ttl(std::chrono::ceil<std::chrono::seconds>(ttl).count());
  pb::LeaseGrantResponse reply;
  CKV_RETURN_IF_ERROR(members_->Ask("lease", &Members::Member::lease, &pb::Lease::Stub::LeaseGrant,
                                    request, deadline, reply));
  if (!reply.error().empty() || reply.id() == 0)
    return absl::InternalError(absl::StrFormat("etcd grants no lease: %s", reply.error()));
  return reply.id();
}

absl::StatusOr<Duration> EtcdClient::RenewLease(int64_t lease, Instant deadline) {
  int64_t seconds = 0;
  CKV_RETURN_IF_ERROR(members_->Try(
      "renewal", deadline, [&](Members::Member& member, grpc::ClientContext& context) {
        const auto stream = member.lease->LeaseKeepAlive(&context);
        pb::LeaseKeepAliveRequest request;
        request.set_id(lease);
        pb::LeaseKeepAliveResponse reply;
        const bool answered = stream->Write(request) && stream->Read(&reply);
        if (answered) {
          seconds = reply.ttl();
          context.TryCancel();
        }
        const grpc::Status status = stream->Finish();
        return answered ? grpc::Status::OK : status;
      }));
  if (seconds <= 0) return absl::NotFoundError("etcd has ended the lease");
  return std::chrono::seconds(seconds);
}

absl::Status EtcdClient::RevokeLease(int64_t lease, Instant deadline) {
  pb::LeaseRevokeRequest request;
  request.set_id(lease);
  pb::LeaseRevokeResponse reply;
  return members_->Ask("end of a lease", &Members::Member::lease, &pb::Lease::Stub::LeaseRevoke,
                       request, deadline, reply);
}

absl::Status EtcdClient::Watch(const EtcdKeys& keys, int64_t revision,
                               absl::FunctionRef<bool(std::span<const EtcdEvent>, int64_t)> take) {
  Members::Member& member = members_->current();
  grpc::ClientContext context;  // no deadline: a watch lasts; pings find a dead peer
  context.AddMetadata(kNeedsLeaderKey, "true");
  if (!members_->BeginWatch(&context)) return absl::CancelledError("watches are stopped");
  const auto stream = member.watch->Watch(&context);
  pb::WatchRequest request;
  pb::WatchCreateRequest* const create = request.mutable_create_request();
  SetKeys(keys, create);
  create->set_start_revision(revision);
  create->set_progress_notify(true);
  create->set_fragment(true);
  bool wanted = stream->Write(request);
  absl::Status ended;
  pb::WatchResponse reply;
  std::vector<EtcdEvent> events;
  while (wanted && stream->Read(&reply)) {
    if (reply.compact_revision() != 0) {
      ended = absl::OutOfRangeError(
          absl::StrFormat("etcd has compacted the revisions before %d", reply.compact_revision()));
      break;
    }
    if (reply.canceled()) {
      ended = absl::UnavailableError(
          absl::StrFormat("etcd ended the watch: %s", reply.cancel_reason()));
      break;
    }
    for (const pb::Event& event : reply.events())
      events.push_back({event.type() == pb::Event::DELETE, FromProto(event.kv())});
    // A new watch may be behind: this reply has the cluster's revision, and not yet its events.
    if (reply.fragment() || reply.created()) continue;
    // The same is true of the first events of a watch that is far behind. Without events, a reply
    // is a notice of progress, which only a watch that is not behind gets.
    const int64_t seen =
        events.empty() ? reply.header().revision() : events.back().pair.mod_revision;
    wanted = take(events, seen);
    events.clear();
  }
  if (!wanted || !ended.ok()) context.TryCancel();
  const grpc::Status status = stream->Finish();
  if (members_->EndWatch(&context)) return absl::CancelledError("watches are stopped");
  if (!ended.ok()) return ended;
  if (!wanted && status.error_code() == grpc::StatusCode::CANCELLED) return absl::OkStatus();
  members_->Leave(member);
  if (status.ok()) return absl::UnavailableError("etcd ended the watch");
  return members_->Error("watch", member, status);
}

void EtcdClient::StopWatches() { members_->StopWatches(); }

absl::StatusOr<EtcdClient::Health> EtcdClient::CheckHealth(Instant deadline) {
  pb::StatusResponse status;
  CKV_RETURN_IF_ERROR(members_->Ask("status", &Members::Member::maintenance,
                                    &pb::Maintenance::Stub::Status, pb::StatusRequest(), deadline,
                                    status));
  pb::AlarmRequest request;
  request.set_action(pb::AlarmRequest::GET);
  pb::AlarmResponse alarms;
  CKV_RETURN_IF_ERROR(members_->Ask("alarms", &Members::Member::maintenance,
                                    &pb::Maintenance::Stub::Alarm, request, deadline, alarms));
  Health health = {.version = status.version(),
                   .db_bytes = status.dbsize(),
                   .has_leader = status.leader() != 0,
                   .is_full = false};
  for (const pb::AlarmMember& alarm : alarms.alarms())
    health.is_full |= alarm.alarm() == pb::NOSPACE;
  return health;
}

}  // namespace ckv
