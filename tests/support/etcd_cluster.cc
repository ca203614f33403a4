#include "tests/support/etcd_cluster.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "absl/strings/str_format.h"
#include "proto/base/clock.h"
#include "proto/base/status.h"
#include "server/directory/etcd/etcd_client.h"
#include "tests/support/temp_folder.h"

namespace ckv::test {
namespace {

constexpr char kProgram[] = "/usr/bin/etcd";
constexpr Duration kStartMax = std::chrono::seconds(20);

// A port that is free now. Those of one process differ.
int FreePort() {
  static std::set<int> used;
  while (true) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof(address);
    CKV_CHECK(fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&address), bytes) == 0 &&
              getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes) == 0);
    close(fd);
    const int port = ntohs(address.sin_port);
    if (used.insert(port).second) return port;
  }
}

std::string ProgramPath() {
  const char* const path = std::getenv("CKV_ETCD");
  return path != nullptr ? path : kProgram;
}

}  // namespace

bool EtcdCluster::IsInstalled() { return access(ProgramPath().c_str(), X_OK) == 0; }

EtcdCluster::EtcdCluster(size_t member_count, size_t space_bytes) : space_bytes_(space_bytes) {
  static int count = 0;
  folder_ = TempPath(absl::StrFormat("etcd-%d", ++count));
  for (size_t i = 0; i < member_count; ++i) {
    Member member;
    member.name = absl::StrFormat("m%d", i);
    member.folder = folder_ + "/" + member.name;
    member.client = absl::StrFormat("127.0.0.1:%d", FreePort());
    member.peer = absl::StrFormat("127.0.0.1:%d", FreePort());
    std::filesystem::create_directories(member.folder);
    std::filesystem::permissions(member.folder, std::filesystem::perms::owner_all);
    absl::StrAppendFormat(&initial_, "%s%s=http://%s", i == 0 ? "" : ",", member.name, member.peer);
    members_.push_back(std::move(member));
  }
  for (size_t i = 0; i < member_count; ++i) Start(i);
  EtcdClient client(endpoints(), Clock::Real());
  const Instant end = Clock::Real()->Now() + kStartMax;
  const auto health = client.CheckHealth(end);
  if (health.ok()) return;
  std::fprintf(stderr, "etcd did not start: %s\n", health.status().ToString().c_str());
  (void)std::system(absl::StrFormat("tail -n 5 %s/*/log >&2", folder_).c_str());
  std::abort();
}

EtcdCluster::~EtcdCluster() {
  for (size_t i = 0; i < members_.size(); ++i) {
    if (members_[i].pid > 0) Kill(i);
  }
}

std::vector<std::string> EtcdCluster::endpoints() const {
  std::vector<std::string> endpoints;
  for (const Member& member : members_) endpoints.push_back(member.client);
  return endpoints;
}

void EtcdCluster::Start(size_t index) {
  Member& member = members_[index];
  CKV_CHECK(member.pid < 0);
  const std::string client = "http://" + member.client, peer = "http://" + member.peer;
  std::vector<std::string> words = {
      ProgramPath(),
      "--name=" + member.name,
      "--data-dir=" + member.folder + "/data",
      "--listen-client-urls=" + client,
      "--advertise-client-urls=" + client,
      "--listen-peer-urls=" + peer,
      "--initial-advertise-peer-urls=" + peer,
      "--initial-cluster=" + initial_,
      std::string("--initial-cluster-state=") + (member.was_started ? "existing" : "new"),
      "--initial-cluster-token=" + folder_,
      absl::StrFormat("--quota-backend-bytes=%d", space_bytes_),
      "--logger=zap",
      "--log-outputs=stderr"};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  const std::string log = member.folder + "/log";
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, log.c_str(),
                                   O_WRONLY | O_CREAT | O_APPEND, 0600);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  CKV_CHECK(posix_spawn(&member.pid, words[0].c_str(), &actions, nullptr, argv.data(), environ) ==
            0);
  posix_spawn_file_actions_destroy(&actions);
  member.was_started = true;
}

void EtcdCluster::Kill(size_t index) {
  Member& member = members_[index];
  CKV_CHECK(member.pid > 0);
  kill(member.pid, SIGKILL);
  waitpid(member.pid, nullptr, 0);
  member.pid = -1;
}

void EtcdCluster::Stop(size_t index) {
  Signal(index, SIGSTOP);
  int status = 0;
  CKV_CHECK(waitpid(members_[index].pid, &status, WUNTRACED) == members_[index].pid &&
            WIFSTOPPED(status));
}
void EtcdCluster::Continue(size_t index) { Signal(index, SIGCONT); }

void EtcdCluster::Signal(size_t index, int signal) {
  CKV_CHECK(members_[index].pid > 0 && kill(members_[index].pid, signal) == 0);
}

}  // namespace ckv::test
