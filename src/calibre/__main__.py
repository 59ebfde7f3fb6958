from calibre.cli import main

main()
