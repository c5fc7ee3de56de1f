# Writes ARCHIVE: the objects of OWN and, where given, of MORE.
if(MORE)
  file(WRITE ${ARCHIVE}.mri "create ${ARCHIVE}\naddlib ${OWN}\naddlib ${MORE}\nsave\nend\n")
  file(REMOVE ${ARCHIVE})
  execute_process(COMMAND ${AR} -M INPUT_FILE ${ARCHIVE}.mri COMMAND_ERROR_IS_FATAL ANY)
else()
  file(COPY_FILE ${OWN} ${ARCHIVE})
endif()
