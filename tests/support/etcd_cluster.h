// A cluster of Debian's etcd on loopback, for one test process.

#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <vector>

namespace ckv::test {

// Starts its members when it is made, and kills them at its end. Each has a folder and ports of its
// own. Not thread-safe. If a member does not start within 20 s, the process is aborted with etcd's
// last lines.
class EtcdCluster {
 public:
  // `space_bytes` is what each may use, as --quota-backend-bytes; 0 is etcd's default.
  explicit EtcdCluster(size_t member_count, size_t space_bytes = 0);
  ~EtcdCluster();
  EtcdCluster(const EtcdCluster&) = delete;
  EtcdCluster& operator=(const EtcdCluster&) = delete;

  // Whether this machine has etcd. Tests without it are skipped, except in CI.
  static bool IsInstalled();

  // The members' client addresses.
  std::vector<std::string> endpoints() const;
  size_t size() const { return members_.size(); }
  // SIGKILL, and a start with the same folder and ports.
  void Kill(size_t member);
  void Start(size_t member);
  // SIGSTOP and SIGCONT.
  void Stop(size_t member);
  void Continue(size_t member);

 private:
  struct Member {
    std::string name, folder, client, peer;
    pid_t pid = -1;
    bool was_started = false;
  };
  void Signal(size_t member, int signal);

  std::string folder_, initial_;
  const size_t space_bytes_;
  std::vector<Member> members_;
};

}  // namespace ckv::test
