// Connects ckvctl to one requester and one directory, each on first use. The directory's address is
// an option, or the requester reports it. With --wait, ChannelTo waits until the server serves.
// Every call has a method here that sets its deadline (Prepare) and turns an error into a text with
// advice.

#include "client/tools/ctl/fleet.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/grpc/channel_stub.h"
#include "client/grpc/directory_stub.h"
#include "client/grpc/grpc_status.h"
#include "client/tools/ctl/await_serving.h"
#include "client/tools/ctl/output.h"
#include "proto/base/status.h"
#include "proto/base/words.h"
#include "proto/convert.h"

namespace ckv::ctl {
namespace {

// The time that a call may take beyond the timeout in its request.
constexpr Duration kCallMargin = std::chrono::seconds(2);
// How long to wait for any answer of a requester, after a call failed.
constexpr Duration kAnswerTimeout = std::chrono::seconds(2);

constexpr char kShowsMembers[] = "ckvctl status shows the members with their roles and addresses";

// Lines after the first are hints, one per line. `advice` is that of Unavailable; if empty, none.
absl::Status WithAdvice(const grpc::Status& status, const std::string& context,
                        std::string_view advice, std::string_view if_not_served = kShowsMembers) {
  absl::Status plain = FromGrpc(status, context);
  // gRPC leaves the text empty if no service of that name is served.
  if (plain.code() == absl::StatusCode::kUnimplemented) {
    return absl::UnimplementedError(
        absl::StrFormat("%s: not served there: a ckvd of another role, or of another version\n  %s",
                        context, if_not_served));
  }
  if (plain.code() != absl::StatusCode::kUnavailable || advice.empty()) return plain;
  return absl::UnavailableError(absl::StrFormat("%s\n  %s", std::string(plain.message()), advice));
}

}  // namespace

Fleet::Fleet(FleetOptions options, Clock* clock)
    : options_(std::move(options)),
      clock_(clock),
      wait_until_(clock->Now() + options_.wait),
      requester_address_(options_.requester.empty() ? std::string(kDefaultRequesterAddress)
                                                    : options_.requester),
      directory_address_(options_.directory) {}

v1::RequesterService::StubInterface& Fleet::requester() {
  if (requester_) return *requester_;
  const std::shared_ptr<grpc::Channel> channel = MakeChannel(requester_address_);
  // The default requester is only used to find the directory. If a directory is named, this
  // requester may be missing.
  const bool wait = !options_.requester.empty() || options_.directory.empty();
  if (wait && options_.wait > Duration(0))
    AwaitServing(channel, v1::RequesterService::service_full_name(), *clock_, wait_until_);
  requester_ = v1::RequesterService::NewStub(channel);
  return *requester_;
}

absl::StatusOr<DirectoryCaller*> Fleet::directory() {
  if (directory_address_.empty()) {
    const absl::StatusOr<v1::DescribeReply> described = Describe();
    if (described.ok() && !described->directory_address().empty()) {
      directory_address_ = described->directory_address();
    } else if (!described.ok() && !options_.requester.empty()) {
      return Annotate(described.status(), "looking for the directory");
    } else {
      directory_address_ = kDefaultDirectoryAddress;
    }
  }
  if (directory_ == nullptr || !directory_->address_status().ok()) {
    directory_ = std::make_unique<DirectoryCaller>(
        directory_address_, clock_, DirectoryCallerOptions{.timeout_max = options_.timeout});
    CKV_RETURN_IF_ERROR(directory_->address_status());
    if (options_.wait > Duration(0)) AwaitDirectory();
  }
  return directory_.get();
}

void Fleet::AwaitDirectory() {
  if (directory_->count() == 1) {
    return AwaitServing(MakeChannel(directory_address_), v1::DirectoryService::service_full_name(),
                        *clock_, wait_until_);
  }
  // Any of several may be the one that serves: a call goes round them until its deadline.
  while (clock_->Now() < wait_until_) {
    v1::DescribeDirectoryReply reply;
    const absl::Status status =
        directory_->Call(&DirectoryCaller::Stub::Describe, "Describe", {}, &reply, wait_until_);
    if (!absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status)) return;
  }
}

absl::StatusOr<v1::DescribeReply> Fleet::Describe() {
  grpc::ClientContext context;
  Prepare(context);
  v1::DescribeReply reply;
  CKV_RETURN_IF_ERROR(RequesterError(requester().Describe(&context, {}, &reply), "Describe"));
  return reply;
}

absl::StatusOr<std::vector<Member>> Fleet::Members(std::vector<v1::EndedLease>* ended,
                                                   std::vector<v1::EngineFacts>* engines) {
  v1::ListMembersRequest request;
  request.set_as_known(ended != nullptr);
  v1::ListMembersReply reply;
  CKV_RETURN_IF_ERROR(
      CallDirectory(&DirectoryCaller::Stub::ListMembers, "ListMembers", request, &reply));
  std::vector<Member> members;
  for (const v1::Member& message : reply.members()) {
    CKV_ASSIGN_OR_RETURN(Member member, FromProto(message));
    members.push_back(std::move(member));
  }
  if (ended != nullptr) ended->assign(reply.ended().begin(), reply.ended().end());
  if (engines != nullptr) engines->assign(reply.engines().begin(), reply.engines().end());
  std::sort(members.begin(), members.end(),
            [](const Member& a, const Member& b) { return a.id < b.id; });
  return members;
}

absl::StatusOr<std::vector<Member>> Fleet::Holders() {
  CKV_ASSIGN_OR_RETURN(std::vector<Member> members, Members());
  std::erase_if(members, [](const Member& m) { return m.role != MemberRole::kHolder; });
  if (members.empty()) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "the directory at %s has no live holder\n  start one: ckvd --role=holder --directory=%s\n"
        "  or wait: holders return some seconds after a restart of the directory",
        directory_address_, directory_address_));
  }
  return members;
}

absl::StatusOr<Corpus> Fleet::GetCorpus(const std::string& name) {
  v1::GetCorpusRequest request;
  request.set_name(name);
  request.set_tenant(options_.tenant);
  v1::GetCorpusReply reply;
  const absl::Status status =
      CallDirectory(&DirectoryCaller::Stub::GetCorpus, "GetCorpus", request, &reply);
  if (status.code() == absl::StatusCode::kNotFound) {
    const std::string nearest = NearestCorpus(name);
    return absl::NotFoundError(absl::StrFormat(
        "no corpus '%s'%s%s\n  ckvctl corpus list shows what there is", name,
        options_.tenant.empty() ? "" : absl::StrFormat(" of tenant '%s'", options_.tenant),
        nearest.empty() ? "" : absl::StrFormat("\n  did you mean %s?", nearest)));
  }
  CKV_RETURN_IF_ERROR(status);
  return FromProto(reply.corpus());
}

std::string Fleet::NearestCorpus(const std::string& name) {
  const absl::StatusOr<v1::ListCorporaReply> listed = ListCorpora();
  if (!listed.ok()) return "";
  std::vector<std::string> names;
  for (const v1::CorpusSummary& summary : listed->corpora()) names.push_back(summary.name());
  return Printable(NearestWord(name, names));
}

absl::StatusOr<v1::ListCorporaReply> Fleet::ListCorpora() {
  v1::ListCorporaRequest request;
  request.set_tenant(options_.tenant);
  v1::ListCorporaReply reply;
  CKV_RETURN_IF_ERROR(
      CallDirectory(&DirectoryCaller::Stub::ListCorpora, "ListCorpora", request, &reply));
  return reply;
}

absl::StatusOr<v1::DescribeDirectoryReply> Fleet::DescribeDirectory() {
  v1::DescribeDirectoryReply reply;
  CKV_RETURN_IF_ERROR(CallDirectory(&DirectoryCaller::Stub::Describe, "Describe", {}, &reply));
  return reply;
}

absl::StatusOr<v1::LocateChunkReply> Fleet::Locate(const ChunkId& id) {
  v1::LocateChunkRequest request;
  request.set_id(std::string(id.AsBytes()));
  request.set_tenant(options_.tenant);
  v1::LocateChunkReply reply;
  const absl::Status status =
      CallDirectory(&DirectoryCaller::Stub::LocateChunk, "LocateChunk", request, &reply);
  if (status.code() == absl::StatusCode::kNotFound) return v1::LocateChunkReply();
  CKV_RETURN_IF_ERROR(status);
  return reply;
}

absl::StatusOr<TenantKey> Fleet::KeyOfTenant(bool make) {
  if (options_.tenant.empty()) return TenantKey();
  CKV_ASSIGN_OR_RETURN(DirectoryCaller* const caller, directory());
  CallEnd end;
  absl::StatusOr<TenantKey> key =
      ReadTenantKey(*caller, options_.tenant, make, DirectoryDeadline(), &end);
  if (key.ok()) return key;
  return DirectoryError(key.status(), end, "GetTenantKey");
}

absl::StatusOr<std::vector<uint32_t>> Fleet::CountReferences(std::span<const std::string> ids,
                                                             const HolderId& holder) {
  v1::CountReferencesRequest request;
  request.set_holder(holder.name);
  for (const std::string& id : ids) request.add_ids(id);
  v1::CountReferencesReply reply;
  CKV_RETURN_IF_ERROR(
      CallDirectory(&DirectoryCaller::Stub::CountReferences, "CountReferences", request, &reply));
  // A short answer must not pass for chunks that no corpus references.
  if (static_cast<size_t>(reply.counts_size()) != ids.size()) {
    return absl::InternalError(absl::StrFormat("directory at %s: %d counts for %d chunks",
                                               directory_address_, reply.counts_size(),
                                               ids.size()));
  }
  return std::vector<uint32_t>(reply.counts().begin(), reply.counts().end());
}

void Fleet::Prepare(grpc::ClientContext& context) const { Prepare(context, options_.timeout); }

void Fleet::Prepare(grpc::ClientContext& context, Duration timeout) const {
  SetDeadline(context, *clock_, clock_->Now() + timeout, timeout);
}

void Fleet::PrepareBeyond(grpc::ClientContext& context, uint32_t request_timeout_ms) const {
  Prepare(context, std::chrono::milliseconds(request_timeout_ms) + kCallMargin);
}

uint32_t Fleet::RemainingMs(Instant deadline) const {
  return std::max(1u, RemainingUs(deadline, clock_->Now()) / 1000);
}

absl::Status Fleet::RequesterError(const grpc::Status& status, std::string_view call) const {
  const bool drains = status.error_message().find("draining") != std::string::npos;
  const bool query =
      status.error_code() == grpc::StatusCode::UNAVAILABLE && call != "Describe" && !drains;
  const std::string_view option = options_.requester_option;
  return WithAdvice(
      status,
      absl::StrFormat("%s %s: %s", option.empty() ? "requester at" : option, requester_address_,
                      call),
      query && RequesterAnswers()
          ? "the requester is there, but not what it needs: ckvctl status shows who is alive, and "
            "ckvctl corpus show NAME who holds the chunks\n  if a holder is alive: check its "
            "data_listen and the firewall between\n  if it is gone: ckvctl corpus load NAME ... "
            "--replace places its chunks on those that are alive"
      : options_.requester_option.empty()
          ? "is it running? name another with --requester or CKV_REQUESTER"
          : "is it running? name another with " + options_.requester_option);
}

bool Fleet::RequesterAnswers() const {
  if (!requester_) return false;
  grpc::ClientContext context;
  Prepare(context, std::min(options_.timeout, kAnswerTimeout));
  v1::DescribeReply reply;
  return requester_->Describe(&context, {}, &reply).ok();
}

absl::Status Fleet::DirectoryError(const absl::Status& status, const CallEnd& end,
                                   std::string_view call) const {
  if (status.ok() || end.status.ok()) return status;
  return WithAdvice(
      end.status, absl::StrFormat("directory at %s: %s", end.address, call),
      IsConnectionError(end.status)
          ? "is it running? name another with --directory or CKV_DIRECTORY"
          : "",
      "name the address of a ckvd of --role=directory with --directory or CKV_DIRECTORY");
}

}  // namespace ckv::ctl
