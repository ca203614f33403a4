// A ckvd of its own: started, waited for, signalled and always ended by its pid.

#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/inotify.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "proto/base/clock.h"

extern char** environ;

namespace ckv::test {

inline std::string ReadWhole(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// Waits for files to appear and disappear in one folder.
class FolderWatch {
 public:
  explicit FolderWatch(const std::string& folder) : fd_(inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) {
    EXPECT_GE(inotify_add_watch(fd_, folder.c_str(), IN_MOVED_TO | IN_DELETE), 0);
  }
  ~FolderWatch() { close(fd_); }
  FolderWatch(const FolderWatch&) = delete;
  FolderWatch& operator=(const FolderWatch&) = delete;

  // Whether `path` is there (or, with `there` false, is not) before the process of `pidfd` ends.
  bool Await(const std::string& path, bool there, int pidfd, Instant deadline) {
    while ((access(path.c_str(), F_OK) == 0) != there) {
      const Duration left = deadline - Clock::Real()->Now();
      if (left <= Duration(0)) return false;
      pollfd waiting[2] = {{fd_, POLLIN, 0}, {pidfd, POLLIN, 0}};
      const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
      poll(waiting, 2, static_cast<int>(ms));
      if (waiting[1].revents != 0) return (access(path.c_str(), F_OK) == 0) == there;
      char events[4096];
      while (read(fd_, events, sizeof(events)) > 0) {
      }
    }
    return true;
  }

 private:
  const int fd_;
};

class Process {
 public:
  // Runs `program` with `arguments`; its stdout and stderr are written to `log_path`.
  Process(const std::string& program, const std::vector<std::string>& arguments,
          std::string log_path)
      : log_path_(std::move(log_path)) {
    std::vector<char*> argv = {const_cast<char*>(program.c_str())};
    for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, log_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC,
                                     0600);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    const int error = posix_spawn(&pid_, program.c_str(), &actions, nullptr, argv.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    EXPECT_EQ(error, 0) << program;
    if (error != 0) pid_ = -1;
    if (pid_ > 0) pidfd_ = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
    EXPECT_GE(pidfd_, 0);
  }
  ~Process() {
    if (pid_ > 0 && !status_) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    if (pidfd_ >= 0) close(pidfd_);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  int pidfd() const { return pidfd_; }
  std::string log() const { return ReadWhole(log_path_); }

  void Signal(int signal) {
    if (pid_ > 0 && !status_) kill(pid_, signal);
  }

  // Returns once every thread of the process has stopped; the signal alone takes effect later.
  void Stop() {
    Signal(SIGSTOP);
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, WUNTRACED), pid_);
    EXPECT_TRUE(WIFSTOPPED(status));
  }

  // The exit status, or 128 + the signal that ended it; nothing at `deadline`.
  std::optional<int> AwaitExit(Instant deadline) {
    while (!status_) {
      const Duration left = deadline - Clock::Real()->Now();
      if (left <= Duration(0)) return std::nullopt;
      pollfd waiting = {pidfd_, POLLIN, 0};
      poll(&waiting, 1,
           static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count()));
      if (waiting.revents == 0) continue;
      int status = 0;
      if (waitpid(pid_, &status, 0) != pid_) return std::nullopt;
      status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    return status_;
  }

 private:
  const std::string log_path_;
  pid_t pid_ = -1;
  int pidfd_ = -1;
  std::optional<int> status_;
};

}  // namespace ckv::test
