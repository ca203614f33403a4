# The packages that `cpack` makes: ckvd, ckvctl, libckv-dev (deploy/packages.sh). Included after
# install.cmake, whose components they are. All text in them that tells of options is written by
# ckv_pages from the programs' own tables, in each build.
set(debian ${PROJECT_SOURCE_DIR}/deploy/debian)
set(pages_folder ${CMAKE_BINARY_DIR}/pages)
set(pages ckvd.yaml ckvd.8 ckvctl.1 ckvd.bash ckvctl.bash _ckvd _ckvctl ckvd.fish ckvctl.fish)
list(TRANSFORM pages PREPEND ${pages_folder}/ OUTPUT_VARIABLE page_files)
set(manuals ${pages_folder}/ckvd.8.gz ${pages_folder}/ckvctl.1.gz)
file(MAKE_DIRECTORY ${pages_folder})
add_custom_command(OUTPUT ${page_files} ${manuals}
                   COMMAND ckv_pages ${pages_folder}
                   COMMAND gzip -9nkf ${pages_folder}/ckvd.8 ${pages_folder}/ckvctl.1
                   DEPENDS ckv_pages VERBATIM)
add_custom_target(ckv_page_files ALL DEPENDS ${page_files} ${manuals})

install(FILES ${pages_folder}/ckvd.yaml DESTINATION /etc/ckv COMPONENT ckvd)
install(FILES ${pages_folder}/ckvd.8.gz DESTINATION share/man/man8 COMPONENT ckvd)
install(FILES ${pages_folder}/ckvctl.1.gz DESTINATION share/man/man1 COMPONENT ckvctl)
foreach(program ckvd ckvctl)
  install(FILES ${pages_folder}/${program}.bash DESTINATION share/bash-completion/completions
          RENAME ${program} COMPONENT ${program})
  install(FILES ${pages_folder}/_${program} DESTINATION share/zsh/vendor-completions COMPONENT ${program})
  install(FILES ${pages_folder}/${program}.fish DESTINATION share/fish/vendor_completions.d
          COMPONENT ${program})
endforeach()
file(GLOB units ${PROJECT_SOURCE_DIR}/deploy/systemd/*.service)
install(FILES ${units} DESTINATION lib/systemd/system COMPONENT ckvd)
install(FILES ${PROJECT_SOURCE_DIR}/deploy/systemd/rdma.conf DESTINATION share/ckv/systemd COMPONENT ckvd)
install(FILES ${debian}/ckvd.sysusers DESTINATION lib/sysusers.d RENAME ckv.conf COMPONENT ckvd)
install(FILES ${debian}/ckvd.tmpfiles DESTINATION lib/tmpfiles.d RENAME ckv.conf COMPONENT ckvd)
install(FILES ${debian}/copyright DESTINATION share/doc/ckvd COMPONENT ckvd)
install(FILES ${debian}/copyright DESTINATION share/doc/ckvctl COMPONENT ckvctl)
install(FILES ${debian}/copyright DESTINATION share/doc/libckv-dev COMPONENT development)

# The format of a store's folder, from the code that writes it.
file(STRINGS ${PROJECT_SOURCE_DIR}/store/disk/chunk_folder.cc format REGEX "ckv chunk folder [0-9]+")
string(REGEX MATCH "ckv chunk folder ([0-9]+)" format "${format}")
set(CKV_STORE_FORMAT ${CMAKE_MATCH_1})
if(NOT CKV_STORE_FORMAT)
  message(FATAL_ERROR "store/disk/chunk_folder.cc names no format for preinst")
endif()
# dpkg takes scripts by these names, and runs those that may be run.
configure_file(${debian}/ckvd.preinst.in ${CMAKE_BINARY_DIR}/debian/preinst @ONLY
               FILE_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(control ${CMAKE_BINARY_DIR}/debian/preinst)
foreach(script postinst prerm postrm conffiles)
  configure_file(${debian}/ckvd.${script} ${CMAKE_BINARY_DIR}/debian/${script} COPYONLY)
  list(APPEND control ${CMAKE_BINARY_DIR}/debian/${script})
endforeach()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_VENDOR "ckv")
set(CPACK_PACKAGE_CONTACT "ckv <ckv@localhost>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL ckvd ckvctl development)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE zstd)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_HOMEPAGE "")
set(no_licence "It has no licence yet: see /usr/share/doc.")
set(CPACK_DEBIAN_CKVD_PACKAGE_NAME ckvd)
set(CPACK_DEBIAN_CKVD_PACKAGE_SECTION net)
set(CPACK_DEBIAN_CKVD_DESCRIPTION "daemon that answers attention over compressed KV cache elsewhere\n${no_licence}")
set(CPACK_DEBIAN_CKVD_PACKAGE_DEPENDS "systemd (>= 252)")
set(CPACK_DEBIAN_CKVD_PACKAGE_CONTROL_EXTRA ${control})
set(CPACK_DEBIAN_CKVCTL_PACKAGE_NAME ckvctl)
set(CPACK_DEBIAN_CKVCTL_PACKAGE_SECTION net)
set(CPACK_DEBIAN_CKVCTL_DESCRIPTION "corpora, chunks and queries of a ckv fleet\n${no_licence}")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libckv-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_DESCRIPTION "headers and libraries of ckv's client\n${no_licence}")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS
    "libabsl-dev, libgrpc++-dev, libhwy-dev, libprotobuf-dev, libspdlog-dev, libssl-dev, liburing-dev, libxxhash-dev, nlohmann-json3-dev")
include(CPack)
