// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/file_system.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace deltaport::files {

namespace {

Hook& installed_hook() {
  static Hook hook;
  return hook;
}

/// Runs the hook; true when the operation shall fail (errno set).
bool refused(Operation operation, const Path& path) {
  const Hook& hook = installed_hook();
  const int error_number = hook ? hook(operation, path) : 0;
  errno = error_number;
  return error_number != 0;
}

}  // namespace

void raise(FileOrigin origin, const std::string& message) {
  switch (origin) {
    case FileOrigin::data:
      throw DataError(message);
    case FileOrigin::user:
      throw Error(message, ExitCode::bad_input);
    default:
      throw CheckpointError(message);
  }
}

void raise_system(FileOrigin origin, std::string_view what, const Path& path, int error_number) {
  std::string message =
      concat("cannot ", what, " ", path.string(), ": ", std::generic_category().message(error_number));
  if (error_number == ENOSPC || error_number == EDQUOT)
    message += "; free some space or choose another folder";
  raise(origin, message);
}

void set_hook(Hook hook) {
  installed_hook() = std::move(hook);
}

void make_directory(const Path& path) {
  if (refused(Operation::make_directory, path) || ::mkdir(path.c_str(), 0777) != 0)
    raise_system(FileOrigin::checkpoint, "make folder", path, errno);
}

void make_directories(const Path& path) {
  std::error_code ignored;
  if (path.empty() || std::filesystem::is_directory(path, ignored)) return;
  make_directories(path.parent_path());
  // Another process may have made it in the meantime.
  if (refused(Operation::make_directory, path) || (::mkdir(path.c_str(), 0777) != 0 && errno != EEXIST))
    raise_system(FileOrigin::checkpoint, "make folder", path, errno);
  sync_directory(path.parent_path());
}

void rename_path(const Path& from, const Path& to, FileOrigin origin) {
  if (refused(Operation::rename, from) || ::rename(from.c_str(), to.c_str()) != 0)
    raise_system(origin, "rename to " + to.string() + " the path", from, errno);
}

void sync_directory(const Path& path, FileOrigin origin) {
  const Path folder = path.empty() ? Path(".") : path;
  if (refused(Operation::sync_directory, folder)) raise_system(origin, "flush folder", folder, errno);
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) raise_system(origin, "open folder", folder, errno);
  // Some network file systems cannot flush folders and say EINVAL; they have nothing to flush.
  const int status = ::fsync(fd);
  const int error_number = errno;
  ::close(fd);
  if (status != 0 && error_number != EINVAL) raise_system(origin, "flush folder", folder, error_number);
}

void remove_file(const Path& path, FileOrigin origin) {
  if (refused(Operation::remove_file, path) || (::unlink(path.c_str()) != 0 && errno != ENOENT))
    raise_system(origin, "remove", path, errno);
}

void remove_tree(const Path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(std::filesystem::symlink_status(path, ignored))) return;
  const Path commit = path / "COMMIT";
  if (std::filesystem::exists(commit, ignored)) {
    remove_file(commit);
    sync_directory(path);
  }
  std::vector<Path> entries;
  std::error_code error;
  for (std::filesystem::directory_iterator it(path, error), end; !error && it != end; it.increment(error))
    entries.push_back(it->path());
  if (error) raise_system(FileOrigin::checkpoint, "list folder", path, error.value());
  std::sort(entries.begin(), entries.end());
  for (const Path& entry : entries) {
    if (std::filesystem::is_directory(std::filesystem::symlink_status(entry, ignored))) {
      remove_tree(entry);
    } else {
      remove_file(entry);
    }
  }
  if (refused(Operation::remove_directory, path) || ::rmdir(path.c_str()) != 0)
    raise_system(FileOrigin::checkpoint, "remove folder", path, errno);
}

std::uint64_t available_bytes(const Path& path) {
  struct statvfs info {};
  if (refused(Operation::measure_space, path) || ::statvfs(path.c_str(), &info) != 0)
    raise_system(FileOrigin::checkpoint, "measure the free space of", path, errno);
  return static_cast<std::uint64_t>(info.f_bavail) * static_cast<std::uint64_t>(info.f_frsize);
}

// The output file calls the hook too.
int run_hook(Operation operation, const Path& path) {
  return refused(operation, path) ? errno : 0;
}

}  // namespace deltaport::files
