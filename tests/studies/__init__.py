from studies.validation import register

register()  # studies of kind "validation" are known from here on
