// A directory on loopback that leads, follows or does not answer, as a test says.

#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "ckv/v1/directory.grpc.pb.h"
#include "client/grpc/channel_stub.h"
#include "client/grpc/grpc_status.h"
#include "gtest/gtest.h"
#include "tests/support/soon.h"

namespace ckv::test {

// It has at most one corpus. GetCorpus is a read; PublishCorpus and DropCorpus need the leader; a
// Watch ends if it knows another leader. Thread-safe.
class FakeDirectory final : public v1::DirectoryService::Service {
 public:
  // A handler's own answer to its call number `call`, from 1, made without the lock. OK continues
  // as usual.
  using Hook = std::function<grpc::Status(const grpc::ServerContext& context, int call)>;

  FakeDirectory() {
    SetCorpus("docs");
    Start();
  }
  ~FakeDirectory() override { Kill(); }

  // Sends kLeaderKey with this text from now on.
  void Lead() { Report(kLeadsItself); }
  void Follow(const std::string& leader) { Report(leader); }
  void Report(std::optional<std::string> leader) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    leader_ = std::move(leader);
  }
  void SetHook(Hook hook) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    hook_ = std::move(hook);
  }
  // Gives it a corpus of this name; none if that is empty.
  void SetCorpus(const std::string& name) ABSL_LOCKS_EXCLUDED(mu_) {
    v1::Corpus corpus;
    corpus.set_name(name);
    SetCorpus(corpus);
  }
  void SetCorpus(const v1::Corpus& corpus) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    corpus_ = corpus;
  }
  // Makes the next change and does not say so, as a server that stops.
  void LoseNextAnswer() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    loses_answer_ = true;
  }
  // Calls are received and not answered, until Answer.
  void BeSilent() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    silent_ = true;
  }
  void Answer() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    silent_ = false;
  }
  // Ends all calls and connections at once.
  void Kill() {
    Answer();
    {
      absl::MutexLock lock(&mu_);
      killed_ = true;
    }
    if (server_) server_->Shutdown(gpr_time_0(GPR_CLOCK_REALTIME));
    server_.reset();
  }
  // Starts again, at the same address.
  void Start() {
    {
      absl::MutexLock lock(&mu_);
      killed_ = false;
    }
    KeepGrpcUp();
    grpc::ServerBuilder builder;
    builder.AddListeningPort(absl::StrCat("127.0.0.1:", port_), grpc::InsecureServerCredentials(),
                             &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
  }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  int call_count() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return call_count_;
  }
  // Waits until it has received `count` calls.
  bool AwaitCalls(int count) const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    const auto reached = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return call_count_ >= count; };
    return Clock::Real()->Await(mu_, absl::Condition(&reached), Soon());
  }

  grpc::Status GetCorpus(grpc::ServerContext* context, const v1::GetCorpusRequest* request,
                         v1::GetCorpusReply* reply) override ABSL_LOCKS_EXCLUDED(mu_) {
    if (grpc::Status status = Begin(context); !status.ok()) return status;
    absl::MutexLock lock(&mu_);
    if (corpus_.name() != request->name()) return {grpc::StatusCode::NOT_FOUND, "no such corpus"};
    *reply->mutable_corpus() = corpus_;
    return grpc::Status::OK;
  }
  grpc::Status PublishCorpus(grpc::ServerContext* context, const v1::PublishCorpusRequest* request,
                             v1::PublishCorpusReply* reply) override ABSL_LOCKS_EXCLUDED(mu_) {
    if (grpc::Status status = Begin(context); !status.ok()) return status;
    absl::MutexLock lock(&mu_);
    if (grpc::Status status = RefuseUnlessLeader(); !status.ok()) return status;
    if (corpus_.name() == request->corpus().name() && !request->replace())
      return {grpc::StatusCode::ALREADY_EXISTS, "the name is taken"};
    if (request->expected_version() != 0 && request->expected_version() != corpus_.version())
      return {grpc::StatusCode::FAILED_PRECONDITION, "another version"};
    const uint64_t version = corpus_.version() + 1;
    corpus_ = request->corpus();
    corpus_.set_version(version);
    reply->set_version(version);
    return AnswerToChange();
  }
  grpc::Status DropCorpus(grpc::ServerContext* context, const v1::DropCorpusRequest* request,
                          v1::DropCorpusReply* reply) override ABSL_LOCKS_EXCLUDED(mu_) {
    if (grpc::Status status = Begin(context); !status.ok()) return status;
    absl::MutexLock lock(&mu_);
    if (grpc::Status status = RefuseUnlessLeader(); !status.ok()) return status;
    if (corpus_.name() != request->name()) return {grpc::StatusCode::NOT_FOUND, "no such corpus"};
    corpus_.Clear();
    reply->mutable_corpus()->set_name(request->name());
    return AnswerToChange();
  }
  grpc::Status Watch(grpc::ServerContext* context, const v1::WatchRequest*,
                     grpc::ServerWriter<v1::WatchEvent>* writer) override ABSL_LOCKS_EXCLUDED(mu_) {
    if (grpc::Status status = Begin(context); !status.ok()) return status;
    absl::MutexLock lock(&mu_);
    if (grpc::Status status = RefuseUnlessLeader(); !status.ok() && !leader_->empty())
      return status;
    v1::WatchEvent event;
    event.set_synced(true);
    writer->Write(event);
    const auto ends = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return killed_ || (leader_ && !leader_->empty() && *leader_ != kLeadsItself);
    };
    Clock::Real()->Await(mu_, absl::Condition(&ends), Soon());
    return {grpc::StatusCode::UNAVAILABLE, "this directory does not lead"};
  }

 private:
  grpc::Status RefuseUnlessLeader() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!leader_ || *leader_ == kLeadsItself) return grpc::Status::OK;
    return {grpc::StatusCode::UNAVAILABLE, "this directory does not lead"};
  }
  grpc::Status AnswerToChange() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!std::exchange(loses_answer_, false)) return grpc::Status::OK;
    return {grpc::StatusCode::CANCELLED, "stopping"};
  }
  grpc::Status Begin(grpc::ServerContext* context) ABSL_LOCKS_EXCLUDED(mu_) {
    Hook hook;
    int call = 0;
    {
      absl::MutexLock lock(&mu_);
      call = ++call_count_;
      hook = hook_;
      const auto may_answer = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !silent_; };
      Clock::Real()->Await(mu_, absl::Condition(&may_answer), Soon());
    }
    grpc::Status status = hook ? hook(*context, call) : grpc::Status::OK;
    absl::MutexLock lock(&mu_);
    if (leader_) context->AddTrailingMetadata(kLeaderKey, *leader_);
    return status;
  }

  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  mutable absl::Mutex mu_;
  std::optional<std::string> leader_ ABSL_GUARDED_BY(mu_);
  Hook hook_ ABSL_GUARDED_BY(mu_);
  v1::Corpus corpus_ ABSL_GUARDED_BY(mu_);
  bool loses_answer_ ABSL_GUARDED_BY(mu_) = false;
  bool killed_ ABSL_GUARDED_BY(mu_) = false;
  bool silent_ ABSL_GUARDED_BY(mu_) = false;
  int call_count_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace ckv::test
