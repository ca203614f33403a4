// Makes the calls to a fleet's directory, which may be several processes: one leads, the others
// follow. A call does not fail because one of them ends or stops.
//
//   DirectoryCaller directory("10.0.0.1:7400,10.0.0.2:7400,10.0.0.3:7400", Clock::Real());
//   v1::GetCorpusReply reply;
//   CKV_RETURN_IF_ERROR(directory.Call(&DirectoryCaller::Stub::GetCorpus, "GetCorpus", request,
//                                      &reply, deadline));

#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "ckv/v1/directory.grpc.pb.h"
#include "client/grpc/channel_stub.h"
#include "client/grpc/default_addresses.h"
#include "client/grpc/grpc_status.h"
#include "proto/base/clock.h"

namespace ckv {

// The time limit of a call's first try, if there are several directories; half of the time left if
// that is shorter. So a process that is stopped takes only part of a call's time. The limit doubles
// after each round in which a try reached it, so that a long reply still arrives.
inline constexpr Duration kTryTimeout = std::chrono::seconds(1);
// For how long all calls avoid a directory that kept a try waiting in vain, as long as others are
// left. A follower names a leader that is stopped until its lease ends.
inline constexpr Duration kSilencePause = std::chrono::seconds(1);
// The pause after a round of all directories without success. An election takes seconds.
inline constexpr Duration kRoundPause = std::chrono::milliseconds(50);
// The most leaders remembered that directories named and that were not among the given addresses.
inline constexpr size_t kNamedLeaderCountMax = 8;

struct DirectoryCallerOptions {
  int message_bytes_max = kMessageBytesMax;
  Duration timeout_max = kControlTimeoutMax;  // the limit of one call, with all its tries
  // Converts the status of a call to one directory. Several directories take FromPeer.
  absl::Status (*convert)(const grpc::Status&, std::string_view context) = FromGrpc;
};

// How a call ended, beside its status.
struct CallEnd {
  // The status of the last try, and where that was made. If several directories were tried in vain,
  // the text says how many, and a status that FromPeer makes Unavailable is so here.
  grpc::Status status;
  std::string address;
  // An earlier try of the call may have taken effect: it ended without an answer. The caller must
  // not take an error about its own effect, for example AlreadyExists, for a failure.
  bool was_repeated = false;
  // The values that the directory sent beside its status (grpc_status.h).
  std::optional<uint32_t> lease_end_ms;
  std::optional<uint64_t> directory_incarnation;
};

// Thread-safe; calls are independent of each other and run on their caller's thread.
//
// With one address, a call is one try, with the time left. With several, a call begins at the
// directory that led last, or answered last, and ends with
//   OK                  of the directory that leads. A follower's is taken if none leads, or if the
//                       leader does not answer: it may be older than the caller's own last change.
//   an error            of the directory that leads; or of any, while none leads. Unavailable does
//                       not end it, because a directory that stops returns that. Nor does
//                       DeadlineExceeded before the call's deadline.
// Otherwise the next try is at the leader that the answer named, or else at the next address. After
// a round of all addresses it pauses for kRoundPause. At the deadline, the call returns the error
// of the last try. A follower's error about missing data is repeated at the leader, whose state may
// be newer.
class DirectoryCaller {
 public:
  using Stub = v1::DirectoryService::StubInterface;

  // `addresses` is "host:port" or a list "host:port,host:port,...", at most kDirectoryCountMax.
  // Does not touch the network. `clock` must outlive it. If a list is malformed
  // (ParsePeerAddresses), every call returns its InvalidArgument.
  DirectoryCaller(std::string_view addresses, Clock* clock,
                  const DirectoryCallerOptions& options = {});
  ~DirectoryCaller();
  DirectoryCaller(const DirectoryCaller&) = delete;
  DirectoryCaller& operator=(const DirectoryCaller&) = delete;

  // Makes a unary call until `deadline`, but no longer than options.timeout_max. An error's message
  // begins with "directory ADDRESS: NAME: ". If `end` is not null, it receives how the call ended.
  template <class Request, class Reply>
  absl::Status Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
                    std::string_view name, const Request& request, Reply* reply, Instant deadline,
                    CallEnd* end = nullptr) {
    const auto one_try = [&](Stub& stub, grpc::ClientContext* context) {
      return (stub.*method)(context, request, reply);
    };
    return Run(name, one_try, deadline, end);
  }
  // The same, where each try is a call of `one_try`.
  absl::Status Run(std::string_view name,
                   absl::FunctionRef<grpc::Status(Stub&, grpc::ClientContext*)> one_try,
                   Instant deadline, CallEnd* end = nullptr);

  // For streams, which a user opens and ends itself. `BeginStream` returns where the next one goes:
  // to the leader, as far as known. `EndStream` takes the stream's status and its context after
  // Finish. They decide where the following stream goes: to the leader if it is known, else to the
  // next address. It returns the status as Call does.
  struct Place {
    std::string address;
    std::shared_ptr<Stub> stub;
  };
  Place BeginStream() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status EndStream(const Place& place, std::string_view name, const grpc::Status& status,
                         const grpc::ClientContext& context) ABSL_LOCKS_EXCLUDED(mu_);

  const std::string& addresses() const { return addresses_; }
  // OK, or the error of every call.
  const absl::Status& address_status() const { return malformed_; }
  // The number of given addresses.
  size_t count() const { return given_.size(); }

 private:
  struct Peer;
  struct Answer;
  using PeerPtr = std::shared_ptr<Peer>;
  using OneTry = absl::FunctionRef<grpc::Status(Stub&, grpc::ClientContext*)>;

  // Makes one try, which ends by `until`, and notes its answer.
  Answer Try(const PeerPtr& peer, OneTry one_try, Instant until, CallEnd* end)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Makes tries at several directories until one decides the call, or until `deadline`.
  void Search(OneTry one_try, Instant deadline, CallEnd* end) ABSL_LOCKS_EXCLUDED(mu_);
  // Makes the call, which a follower has answered, at the leader that it named. Keeps the
  // follower's answer if the leader gives none.
  void AskLeader(const PeerPtr& leader, OneTry one_try, Instant until,
                 const std::vector<PeerPtr>& tried, CallEnd* end) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns where the next try of a round goes: to `named` if it is set, to the current leader or
  // to an address after `last`. Skips `tried` and silent ones. Returns null at the end of the
  // round; never if nothing was tried.
  PeerPtr Next(const std::vector<PeerPtr>& tried, const PeerPtr& named, const PeerPtr& last)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Judges an answer, and sets where later calls begin.
  void Note(const PeerPtr& peer, Answer& answer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns the peer of an address that a directory named, or null if it is malformed.
  PeerPtr Named(std::string_view address) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns the peer of an address, or null.
  PeerPtr Find(std::string_view address) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns the given peer after `peer`, or the first one.
  PeerPtr After(const PeerPtr& peer) const;
  // Makes the peer's channel if it has none.
  void Connect(Peer& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string addresses_;
  Clock& clock_;
  const DirectoryCallerOptions options_;
  absl::Status malformed_;      // OK, or why the list of addresses cannot be used; constant
  std::vector<PeerPtr> given_;  // constant after construction

  absl::Mutex mu_;
  std::deque<PeerPtr> named_ ABSL_GUARDED_BY(mu_);  // leaders of other addresses, the newest first
  PeerPtr current_ ABSL_GUARDED_BY(mu_);            // the peer at which calls begin
};

}  // namespace ckv
